module @ring_backward attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 1 : i32} {
  func.func private @step(%1: tensor<2x2x2x16x8xf32>, %2: tensor<2x2x16x8xf32>, %3: tensor<2x2x16x4xf32>, %4: tensor<2x16xi32>, %5: tensor<1x16xi32>, %6: tensor<2x2x2x16xf32>, %7: tensor<2x2x2x16x4xf32>, %8: tensor<2x2x2x16xf32>, %9: tensor<2x2x2x16x8xf32>) -> (tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32>) {
    %10 = stablehlo.constant dense<0x00000000> : tensor<2x2x16x8xf32>
    %11 = stablehlo.constant dense<0x00000000> : tensor<2x2x16x4xf32>
    %12 = stablehlo.constant dense<0> : tensor<i32>
    %13 = stablehlo.constant dense<16> : tensor<i32>
    %14:4 = stablehlo.while(%15 = %12, %16 = %10, %17 = %11, %18 = %9) : tensor<i32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32> cond {
      %19 = stablehlo.compare LT, %15, %13 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %19 : tensor<i1>
    } do {
      %20 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x8xf32>
      %21 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x4xf32>
      %22 = stablehlo.constant dense<0> : tensor<i32>
      %23 = stablehlo.dynamic_slice %2, %22, %22, %15, %22, sizes = [2, 2, 8, 8] : (tensor<2x2x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x8x8xf32>
      %24 = stablehlo.constant dense<0> : tensor<i32>
      %25 = stablehlo.dynamic_slice %3, %24, %24, %15, %24, sizes = [2, 2, 8, 4] : (tensor<2x2x16x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x8x4xf32>
      %26 = stablehlo.constant dense<0> : tensor<i32>
      %27 = stablehlo.dynamic_slice %5, %26, %15, sizes = [1, 8] : (tensor<1x16xi32>, tensor<i32>, tensor<i32>) -> tensor<1x8xi32>
      %28 = stablehlo.slice %27 [0:1, 0:8] : (tensor<1x8xi32>) -> tensor<1x8xi32>
      %29 = stablehlo.reshape %28 : (tensor<1x8xi32>) -> tensor<8xi32>
      %30 = stablehlo.constant dense<2147483647> : tensor<i32>
      %31 = stablehlo.reduce(%29 init: %30) applies stablehlo.minimum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
      %32 = stablehlo.constant dense<-2147483648> : tensor<i32>
      %33 = stablehlo.reduce(%29 init: %32) applies stablehlo.maximum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
      %34 = stablehlo.constant dense<0> : tensor<i32>
      %35 = stablehlo.constant dense<16> : tensor<i32>
      %36:4 = stablehlo.while(%37 = %34, %38 = %20, %39 = %21, %40 = %18) : tensor<i32>, tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>, tensor<2x2x2x16x8xf32> cond {
        %41 = stablehlo.compare LT, %37, %35 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %41 : tensor<i1>
      } do {
        %42 = stablehlo.constant dense<0> : tensor<i32>
        %43 = stablehlo.dynamic_slice %1, %42, %42, %42, %37, %42, sizes = [2, 2, 2, 8, 8] : (tensor<2x2x2x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8x8xf32>
        %44 = stablehlo.constant dense<0> : tensor<i32>
        %45 = stablehlo.dynamic_slice %4, %44, %37, sizes = [2, 8] : (tensor<2x16xi32>, tensor<i32>, tensor<i32>) -> tensor<2x8xi32>
        %46 = stablehlo.slice %45 [0:1, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
        %47 = stablehlo.reshape %46 : (tensor<1x8xi32>) -> tensor<8xi32>
        %48 = stablehlo.constant dense<2147483647> : tensor<i32>
        %49 = stablehlo.reduce(%47 init: %48) applies stablehlo.minimum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
        %50 = stablehlo.slice %45 [1:2, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
        %51 = stablehlo.reshape %50 : (tensor<1x8xi32>) -> tensor<8xi32>
        %52 = stablehlo.constant dense<-2147483648> : tensor<i32>
        %53 = stablehlo.reduce(%51 init: %52) applies stablehlo.maximum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
        %54 = stablehlo.constant dense<0> : tensor<i32>
        %55 = stablehlo.dynamic_slice %40, %54, %54, %54, %37, %54, sizes = [2, 2, 2, 8, 8] : (tensor<2x2x2x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8x8xf32>
        %56 = stablehlo.compare GE, %33, %49 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %57 = stablehlo.compare LT, %31, %53 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %58 = stablehlo.and %56, %57 : tensor<i1>
        %59:3 = "stablehlo.if"(%58) ({
          %60 = stablehlo.constant dense<0> : tensor<i32>
          %61 = stablehlo.dynamic_slice %6, %60, %60, %60, %37, sizes = [2, 2, 2, 8] : (tensor<2x2x2x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8xf32>
          %62 = stablehlo.constant dense<0> : tensor<i32>
          %63 = stablehlo.dynamic_slice %8, %62, %62, %62, %37, sizes = [2, 2, 2, 8] : (tensor<2x2x2x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8xf32>
          %64 = stablehlo.constant dense<0> : tensor<i32>
          %65 = stablehlo.dynamic_slice %7, %64, %64, %64, %37, %64, sizes = [2, 2, 2, 8, 4] : (tensor<2x2x2x16x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8x4xf32>
          %66 = stablehlo.broadcast_in_dim %29, dims = [1] : (tensor<8xi32>) -> tensor<8x8xi32>
          %67 = stablehlo.slice %45 [0:1, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
          %68 = stablehlo.reshape %67 : (tensor<1x8xi32>) -> tensor<8xi32>
          %69 = stablehlo.broadcast_in_dim %68, dims = [0] : (tensor<8xi32>) -> tensor<8x8xi32>
          %70 = stablehlo.slice %45 [1:2, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
          %71 = stablehlo.reshape %70 : (tensor<1x8xi32>) -> tensor<8xi32>
          %72 = stablehlo.broadcast_in_dim %71, dims = [0] : (tensor<8xi32>) -> tensor<8x8xi32>
          %73 = stablehlo.compare GE, %66, %69 : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
          %74 = stablehlo.compare LT, %66, %72 : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
          %75 = stablehlo.and %73, %74 : tensor<8x8xi1>
          %76 = stablehlo.broadcast_in_dim %75, dims = [3, 4] : (tensor<8x8xi1>) -> tensor<2x2x2x8x8xi1>
          %77 = stablehlo.dot_general %43, %23, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x2x8x8xf32>
          %78 = stablehlo.constant dense<0x3EB504F3> : tensor<2x2x2x8x8xf32>
          %79 = stablehlo.multiply %77, %78 : tensor<2x2x2x8x8xf32>
          %80 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x8xf32>
          %81 = stablehlo.constant dense<0x3EB504F3> : tensor<2x2x2x8x8xf32>
          %82 = stablehlo.broadcast_in_dim %61, dims = [0, 1, 2, 3] : (tensor<2x2x2x8xf32>) -> tensor<2x2x2x8x8xf32>
          %83 = stablehlo.subtract %79, %82 : tensor<2x2x2x8x8xf32>
          %84 = stablehlo.exponential %83 : tensor<2x2x2x8x8xf32>
          %85 = stablehlo.select %76, %84, %80 : tensor<2x2x2x8x8xi1>, tensor<2x2x2x8x8xf32>
          %86 = stablehlo.dot_general %65, %25, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x2x8x8xf32>
          %87 = stablehlo.broadcast_in_dim %63, dims = [0, 1, 2, 3] : (tensor<2x2x2x8xf32>) -> tensor<2x2x2x8x8xf32>
          %88 = stablehlo.subtract %86, %87 : tensor<2x2x2x8x8xf32>
          %89 = stablehlo.multiply %85, %88 : tensor<2x2x2x8x8xf32>
          %90 = stablehlo.multiply %89, %81 : tensor<2x2x2x8x8xf32>
          %91 = stablehlo.select %76, %90, %80 : tensor<2x2x2x8x8xi1>, tensor<2x2x2x8x8xf32>
          %92 = stablehlo.is_finite %23 : (tensor<2x2x8x8xf32>) -> tensor<2x2x8x8xi1>
          %93 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x8xf32>
          %94 = stablehlo.select %92, %23, %93 : tensor<2x2x8x8xi1>, tensor<2x2x8x8xf32>
          %95 = stablehlo.dot_general %91, %94, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x2x8x8xf32>
          %96 = stablehlo.constant dense<true> : tensor<i1>
          %97 = stablehlo.reduce(%92 init: %96) applies stablehlo.and across dimensions = [0, 1, 2, 3] : (tensor<2x2x8x8xi1>, tensor<i1>) -> tensor<i1>
          %98:1 = "stablehlo.if"(%97) ({
            stablehlo.return %95 : tensor<2x2x2x8x8xf32>
          }, {
            %99 = stablehlo.convert %76 : (tensor<2x2x2x8x8xi1>) -> tensor<2x2x2x8x8xf32>
            %100 = stablehlo.not %92 : tensor<2x2x8x8xi1>
            %101 = stablehlo.convert %100 : (tensor<2x2x8x8xi1>) -> tensor<2x2x8x8xf32>
            %102 = stablehlo.dot_general %99, %101, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x2x8x8xf32>
            %103 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x8xf32>
            %104 = stablehlo.constant dense<0x7F800000> : tensor<2x2x2x8x8xf32>
            %105 = stablehlo.compare GT, %102, %103 : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x8xf32>) -> tensor<2x2x2x8x8xi1>
            %106 = stablehlo.select %105, %104, %103 : tensor<2x2x2x8x8xi1>, tensor<2x2x2x8x8xf32>
            %107 = stablehlo.not %92 : tensor<2x2x8x8xi1>
            %108 = stablehlo.convert %107 : (tensor<2x2x8x8xi1>) -> tensor<2x2x8x8xf32>
            %109 = stablehlo.dot_general %99, %108, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x2x8x8xf32>
            %110 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x8xf32>
            %111 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x8x8xf32>
            %112 = stablehlo.compare GT, %109, %110 : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x8xf32>) -> tensor<2x2x2x8x8xi1>
            %113 = stablehlo.select %112, %111, %110 : tensor<2x2x2x8x8xi1>, tensor<2x2x2x8x8xf32>
            %114 = stablehlo.add %106, %113 : tensor<2x2x2x8x8xf32>
            %115 = stablehlo.add %95, %114 : tensor<2x2x2x8x8xf32>
            stablehlo.return %115 : tensor<2x2x2x8x8xf32>
          }) : (tensor<i1>) -> (tensor<2x2x2x8x8xf32>)
          %116 = stablehlo.add %55, %98#0 : tensor<2x2x2x8x8xf32>
          %117 = stablehlo.is_finite %43 : (tensor<2x2x2x8x8xf32>) -> tensor<2x2x2x8x8xi1>
          %118 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x8xf32>
          %119 = stablehlo.select %117, %43, %118 : tensor<2x2x2x8x8xi1>, tensor<2x2x2x8x8xf32>
          %120 = stablehlo.dot_general %91, %119, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x8xf32>) -> tensor<2x2x8x8xf32>
          %121 = stablehlo.constant dense<true> : tensor<i1>
          %122 = stablehlo.reduce(%117 init: %121) applies stablehlo.and across dimensions = [0, 1, 2, 3, 4] : (tensor<2x2x2x8x8xi1>, tensor<i1>) -> tensor<i1>
          %123:1 = "stablehlo.if"(%122) ({
            stablehlo.return %120 : tensor<2x2x8x8xf32>
          }, {
            %124 = stablehlo.convert %76 : (tensor<2x2x2x8x8xi1>) -> tensor<2x2x2x8x8xf32>
            %125 = stablehlo.not %117 : tensor<2x2x2x8x8xi1>
            %126 = stablehlo.convert %125 : (tensor<2x2x2x8x8xi1>) -> tensor<2x2x2x8x8xf32>
            %127 = stablehlo.dot_general %124, %126, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x8xf32>) -> tensor<2x2x8x8xf32>
            %128 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x8xf32>
            %129 = stablehlo.constant dense<0x7F800000> : tensor<2x2x8x8xf32>
            %130 = stablehlo.compare GT, %127, %128 : (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x8x8xi1>
            %131 = stablehlo.select %130, %129, %128 : tensor<2x2x8x8xi1>, tensor<2x2x8x8xf32>
            %132 = stablehlo.not %117 : tensor<2x2x2x8x8xi1>
            %133 = stablehlo.convert %132 : (tensor<2x2x2x8x8xi1>) -> tensor<2x2x2x8x8xf32>
            %134 = stablehlo.dot_general %124, %133, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x8xf32>) -> tensor<2x2x8x8xf32>
            %135 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x8xf32>
            %136 = stablehlo.constant dense<0xFF800000> : tensor<2x2x8x8xf32>
            %137 = stablehlo.compare GT, %134, %135 : (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x8x8xi1>
            %138 = stablehlo.select %137, %136, %135 : tensor<2x2x8x8xi1>, tensor<2x2x8x8xf32>
            %139 = stablehlo.add %131, %138 : tensor<2x2x8x8xf32>
            %140 = stablehlo.add %120, %139 : tensor<2x2x8x8xf32>
            stablehlo.return %140 : tensor<2x2x8x8xf32>
          }) : (tensor<i1>) -> (tensor<2x2x8x8xf32>)
          %141 = stablehlo.add %38, %123#0 : tensor<2x2x8x8xf32>
          %142 = stablehlo.is_finite %65 : (tensor<2x2x2x8x4xf32>) -> tensor<2x2x2x8x4xi1>
          %143 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x4xf32>
          %144 = stablehlo.select %142, %65, %143 : tensor<2x2x2x8x4xi1>, tensor<2x2x2x8x4xf32>
          %145 = stablehlo.dot_general %85, %144, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
          %146 = stablehlo.constant dense<true> : tensor<i1>
          %147 = stablehlo.reduce(%142 init: %146) applies stablehlo.and across dimensions = [0, 1, 2, 3, 4] : (tensor<2x2x2x8x4xi1>, tensor<i1>) -> tensor<i1>
          %148:1 = "stablehlo.if"(%147) ({
            stablehlo.return %145 : tensor<2x2x8x4xf32>
          }, {
            %149 = stablehlo.convert %76 : (tensor<2x2x2x8x8xi1>) -> tensor<2x2x2x8x8xf32>
            %150 = stablehlo.not %142 : tensor<2x2x2x8x4xi1>
            %151 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x8x4xf32>
            %152 = stablehlo.compare NE, %65, %151 : (tensor<2x2x2x8x4xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x2x8x4xi1>
            %153 = stablehlo.and %150, %152 : tensor<2x2x2x8x4xi1>
            %154 = stablehlo.convert %153 : (tensor<2x2x2x8x4xi1>) -> tensor<2x2x2x8x4xf32>
            %155 = stablehlo.dot_general %149, %154, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
            %156 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x4xf32>
            %157 = stablehlo.constant dense<0x7F800000> : tensor<2x2x8x4xf32>
            %158 = stablehlo.compare GT, %155, %156 : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xi1>
            %159 = stablehlo.select %158, %157, %156 : tensor<2x2x8x4xi1>, tensor<2x2x8x4xf32>
            %160 = stablehlo.not %142 : tensor<2x2x2x8x4xi1>
            %161 = stablehlo.constant dense<0x7F800000> : tensor<2x2x2x8x4xf32>
            %162 = stablehlo.compare NE, %65, %161 : (tensor<2x2x2x8x4xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x2x8x4xi1>
            %163 = stablehlo.and %160, %162 : tensor<2x2x2x8x4xi1>
            %164 = stablehlo.convert %163 : (tensor<2x2x2x8x4xi1>) -> tensor<2x2x2x8x4xf32>
            %165 = stablehlo.dot_general %149, %164, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
            %166 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x4xf32>
            %167 = stablehlo.constant dense<0xFF800000> : tensor<2x2x8x4xf32>
            %168 = stablehlo.compare GT, %165, %166 : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xi1>
            %169 = stablehlo.select %168, %167, %166 : tensor<2x2x8x4xi1>, tensor<2x2x8x4xf32>
            %170 = stablehlo.add %159, %169 : tensor<2x2x8x4xf32>
            %171 = stablehlo.add %145, %170 : tensor<2x2x8x4xf32>
            stablehlo.return %171 : tensor<2x2x8x4xf32>
          }) : (tensor<i1>) -> (tensor<2x2x8x4xf32>)
          %172 = stablehlo.add %39, %148#0 : tensor<2x2x8x4xf32>
          stablehlo.return %141, %172, %116 : tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>, tensor<2x2x2x8x8xf32>
        }, {
          stablehlo.return %38, %39, %55 : tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>, tensor<2x2x2x8x8xf32>
        }) : (tensor<i1>) -> (tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>, tensor<2x2x2x8x8xf32>)
        %173 = stablehlo.constant dense<0> : tensor<i32>
        %174 = stablehlo.dynamic_update_slice %40, %59#2, %173, %173, %173, %37, %173 : (tensor<2x2x2x16x8xf32>, tensor<2x2x2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x16x8xf32>
        %175 = stablehlo.constant dense<8> : tensor<i32>
        %176 = stablehlo.add %37, %175 : tensor<i32>
        stablehlo.return %176, %59#0, %59#1, %174 : tensor<i32>, tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>, tensor<2x2x2x16x8xf32>
      }
      %177 = stablehlo.constant dense<0> : tensor<i32>
      %178 = stablehlo.dynamic_update_slice %16, %36#1, %177, %177, %15, %177 : (tensor<2x2x16x8xf32>, tensor<2x2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x16x8xf32>
      %179 = stablehlo.constant dense<0> : tensor<i32>
      %180 = stablehlo.dynamic_update_slice %17, %36#2, %179, %179, %15, %179 : (tensor<2x2x16x4xf32>, tensor<2x2x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x16x4xf32>
      %181 = stablehlo.constant dense<8> : tensor<i32>
      %182 = stablehlo.add %15, %181 : tensor<i32>
      stablehlo.return %182, %178, %180, %36#3 : tensor<i32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32>
    }
    return %14#1, %14#2, %14#3 : tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32>
  }
  func.func public @main(%183: tensor<2x2x2x16x8xf32>, %184: tensor<2x2x16x8xf32>, %185: tensor<2x2x16x4xf32>, %186: tensor<2x16xi32>, %187: tensor<1x16xi32>, %188: tensor<2x2x2x16x4xf32>, %189: tensor<2x2x2x16xf32>, %190: tensor<2x2x2x16x4xf32>) -> (tensor<2x2x2x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>) {
    %191 = stablehlo.multiply %190, %188 : tensor<2x2x2x16x4xf32>
    %192 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %193 = stablehlo.reduce(%191 init: %192) applies stablehlo.add across dimensions = [4] : (tensor<2x2x2x16x4xf32>, tensor<f32>) -> tensor<2x2x2x16xf32>
    %194 = stablehlo.constant dense<0x00000000> : tensor<2x2x16x8xf32>
    %195 = stablehlo.constant dense<0x00000000> : tensor<2x2x16x4xf32>
    %196 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x16x8xf32>
    %197 = "stablehlo.collective_permute"(%184) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x8xf32>) -> tensor<2x2x16x8xf32>
    %198 = "stablehlo.collective_permute"(%185) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x4xf32>) -> tensor<2x2x16x4xf32>
    %199 = "stablehlo.collective_permute"(%187) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<1x16xi32>) -> tensor<1x16xi32>
    %200 = stablehlo.constant dense<0> : tensor<i32>
    %201:3 = func.call @step(%183, %184, %185, %186, %187, %189, %190, %193, %196) : (tensor<2x2x2x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x16xi32>, tensor<1x16xi32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16x8xf32>) -> (tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32>)
    %202:6 = stablehlo.optimization_barrier %197, %198, %199, %201#0, %201#1, %201#2 : tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<1x16xi32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32>
    %203 = "stablehlo.collective_permute"(%202#3) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x8xf32>) -> tensor<2x2x16x8xf32>
    %204 = "stablehlo.collective_permute"(%202#4) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x4xf32>) -> tensor<2x2x16x4xf32>
    %205 = stablehlo.constant dense<1> : tensor<i32>
    %206:3 = func.call @step(%183, %202#0, %202#1, %186, %202#2, %189, %190, %193, %202#5) : (tensor<2x2x2x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x16xi32>, tensor<1x16xi32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16x8xf32>) -> (tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x2x2x16x8xf32>)
    %207 = stablehlo.add %203, %206#0 : tensor<2x2x16x8xf32>
    %208 = stablehlo.add %204, %206#1 : tensor<2x2x16x4xf32>
    %209 = "stablehlo.collective_permute"(%207) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x8xf32>) -> tensor<2x2x16x8xf32>
    %210 = "stablehlo.collective_permute"(%208) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x4xf32>) -> tensor<2x2x16x4xf32>
    return %206#2, %209, %210 : tensor<2x2x2x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>
  }
}
