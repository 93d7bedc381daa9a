module @ring_forward attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 1 : i32} {
  func.func private @step(%1: tensor<2x2x2x16x8xf32>, %2: tensor<2x2x16x8xf32>, %3: tensor<2x2x16x4xf32>, %4: tensor<2x16xi32>, %5: tensor<1x16xi32>, %6: tensor<2x2x2x16x4xf32>, %7: tensor<2x2x2x16xf32>, %8: tensor<2x2x2x16xf32>) -> (tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>) {
    %9 = stablehlo.constant dense<0> : tensor<i32>
    %10 = stablehlo.constant dense<16> : tensor<i32>
    %11:4 = stablehlo.while(%12 = %9, %13 = %6, %14 = %7, %15 = %8) : tensor<i32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32> cond {
      %16 = stablehlo.compare LT, %12, %10 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %16 : tensor<i1>
    } do {
      %17 = stablehlo.constant dense<0> : tensor<i32>
      %18 = stablehlo.dynamic_slice %13, %17, %17, %17, %12, %17, sizes = [2, 2, 2, 8, 4] : (tensor<2x2x2x16x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8x4xf32>
      %19 = stablehlo.constant dense<0> : tensor<i32>
      %20 = stablehlo.dynamic_slice %14, %19, %19, %19, %12, sizes = [2, 2, 2, 8] : (tensor<2x2x2x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8xf32>
      %21 = stablehlo.constant dense<0> : tensor<i32>
      %22 = stablehlo.dynamic_slice %15, %21, %21, %21, %12, sizes = [2, 2, 2, 8] : (tensor<2x2x2x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8xf32>
      %23 = stablehlo.constant dense<0> : tensor<i32>
      %24 = stablehlo.dynamic_slice %1, %23, %23, %23, %12, %23, sizes = [2, 2, 2, 8, 8] : (tensor<2x2x2x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x8x8xf32>
      %25 = stablehlo.constant dense<0> : tensor<i32>
      %26 = stablehlo.dynamic_slice %4, %25, %12, sizes = [2, 8] : (tensor<2x16xi32>, tensor<i32>, tensor<i32>) -> tensor<2x8xi32>
      %27 = stablehlo.slice %26 [0:1, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
      %28 = stablehlo.reshape %27 : (tensor<1x8xi32>) -> tensor<8xi32>
      %29 = stablehlo.constant dense<2147483647> : tensor<i32>
      %30 = stablehlo.reduce(%28 init: %29) applies stablehlo.minimum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
      %31 = stablehlo.slice %26 [1:2, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
      %32 = stablehlo.reshape %31 : (tensor<1x8xi32>) -> tensor<8xi32>
      %33 = stablehlo.constant dense<-2147483648> : tensor<i32>
      %34 = stablehlo.reduce(%32 init: %33) applies stablehlo.maximum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
      %35 = stablehlo.constant dense<0> : tensor<i32>
      %36 = stablehlo.constant dense<16> : tensor<i32>
      %37:4 = stablehlo.while(%38 = %35, %39 = %18, %40 = %20, %41 = %22) : tensor<i32>, tensor<2x2x2x8x4xf32>, tensor<2x2x2x8xf32>, tensor<2x2x2x8xf32> cond {
        %42 = stablehlo.compare LT, %38, %36 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %42 : tensor<i1>
      } do {
        %43 = stablehlo.constant dense<0> : tensor<i32>
        %44 = stablehlo.dynamic_slice %2, %43, %43, %38, %43, sizes = [2, 2, 8, 8] : (tensor<2x2x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x8x8xf32>
        %45 = stablehlo.constant dense<0> : tensor<i32>
        %46 = stablehlo.dynamic_slice %3, %45, %45, %38, %45, sizes = [2, 2, 8, 4] : (tensor<2x2x16x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x8x4xf32>
        %47 = stablehlo.constant dense<0> : tensor<i32>
        %48 = stablehlo.dynamic_slice %5, %47, %38, sizes = [1, 8] : (tensor<1x16xi32>, tensor<i32>, tensor<i32>) -> tensor<1x8xi32>
        %49 = stablehlo.slice %48 [0:1, 0:8] : (tensor<1x8xi32>) -> tensor<1x8xi32>
        %50 = stablehlo.reshape %49 : (tensor<1x8xi32>) -> tensor<8xi32>
        %51 = stablehlo.constant dense<2147483647> : tensor<i32>
        %52 = stablehlo.reduce(%50 init: %51) applies stablehlo.minimum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
        %53 = stablehlo.constant dense<-2147483648> : tensor<i32>
        %54 = stablehlo.reduce(%50 init: %53) applies stablehlo.maximum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
        %55 = stablehlo.compare GE, %54, %30 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %56 = stablehlo.compare LT, %52, %34 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %57 = stablehlo.and %55, %56 : tensor<i1>
        %58:3 = "stablehlo.if"(%57) ({
          %59 = stablehlo.broadcast_in_dim %50, dims = [1] : (tensor<8xi32>) -> tensor<8x8xi32>
          %60 = stablehlo.slice %26 [0:1, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
          %61 = stablehlo.reshape %60 : (tensor<1x8xi32>) -> tensor<8xi32>
          %62 = stablehlo.broadcast_in_dim %61, dims = [0] : (tensor<8xi32>) -> tensor<8x8xi32>
          %63 = stablehlo.slice %26 [1:2, 0:8] : (tensor<2x8xi32>) -> tensor<1x8xi32>
          %64 = stablehlo.reshape %63 : (tensor<1x8xi32>) -> tensor<8xi32>
          %65 = stablehlo.broadcast_in_dim %64, dims = [0] : (tensor<8xi32>) -> tensor<8x8xi32>
          %66 = stablehlo.compare GE, %59, %62 : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
          %67 = stablehlo.compare LT, %59, %65 : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
          %68 = stablehlo.and %66, %67 : tensor<8x8xi1>
          %69 = stablehlo.broadcast_in_dim %68, dims = [3, 4] : (tensor<8x8xi1>) -> tensor<2x2x2x8x8xi1>
          %70 = stablehlo.dot_general %24, %44, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [3], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x2x8x8xf32>
          %71 = stablehlo.constant dense<0x3EB504F3> : tensor<2x2x2x8x8xf32>
          %72 = stablehlo.multiply %70, %71 : tensor<2x2x2x8x8xf32>
          %73 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x8x8xf32>
          %74 = stablehlo.select %69, %72, %73 : tensor<2x2x2x8x8xi1>, tensor<2x2x2x8x8xf32>
          %75 = stablehlo.constant dense<0xFF800000> : tensor<f32>
          %76 = stablehlo.reduce(%74 init: %75) applies stablehlo.maximum across dimensions = [4] : (tensor<2x2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x2x8xf32>
          %77 = stablehlo.maximum %40, %76 : tensor<2x2x2x8xf32>
          %78 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x8xf32>
          %79 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8xf32>
          %80 = stablehlo.compare EQ, %77, %78 : (tensor<2x2x2x8xf32>, tensor<2x2x2x8xf32>) -> tensor<2x2x2x8xi1>
          %81 = stablehlo.select %80, %79, %77 : tensor<2x2x2x8xi1>, tensor<2x2x2x8xf32>
          %82 = stablehlo.broadcast_in_dim %81, dims = [0, 1, 2, 3] : (tensor<2x2x2x8xf32>) -> tensor<2x2x2x8x8xf32>
          %83 = stablehlo.subtract %74, %82 : tensor<2x2x2x8x8xf32>
          %84 = stablehlo.exponential %83 : tensor<2x2x2x8x8xf32>
          %85 = stablehlo.subtract %40, %81 : tensor<2x2x2x8xf32>
          %86 = stablehlo.exponential %85 : tensor<2x2x2x8xf32>
          %87 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %88 = stablehlo.reduce(%84 init: %87) applies stablehlo.add across dimensions = [4] : (tensor<2x2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x2x8xf32>
          %89 = stablehlo.broadcast_in_dim %86, dims = [0, 1, 2, 3] : (tensor<2x2x2x8xf32>) -> tensor<2x2x2x8xf32>
          %90 = stablehlo.multiply %41, %89 : tensor<2x2x2x8xf32>
          %91 = stablehlo.add %90, %88 : tensor<2x2x2x8xf32>
          %92 = stablehlo.is_finite %46 : (tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xi1>
          %93 = stablehlo.constant dense<0x00000000> : tensor<2x2x8x4xf32>
          %94 = stablehlo.select %92, %46, %93 : tensor<2x2x8x4xi1>, tensor<2x2x8x4xf32>
          %95 = stablehlo.dot_general %84, %94, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x2x8x4xf32>
          %96 = stablehlo.constant dense<true> : tensor<i1>
          %97 = stablehlo.reduce(%92 init: %96) applies stablehlo.and across dimensions = [0, 1, 2, 3] : (tensor<2x2x8x4xi1>, tensor<i1>) -> tensor<i1>
          %98:1 = "stablehlo.if"(%97) ({
            stablehlo.return %95 : tensor<2x2x2x8x4xf32>
          }, {
            %99 = stablehlo.convert %69 : (tensor<2x2x2x8x8xi1>) -> tensor<2x2x2x8x8xf32>
            %100 = stablehlo.not %92 : tensor<2x2x8x4xi1>
            %101 = stablehlo.constant dense<0xFF800000> : tensor<2x2x8x4xf32>
            %102 = stablehlo.compare NE, %46, %101 : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xi1>
            %103 = stablehlo.and %100, %102 : tensor<2x2x8x4xi1>
            %104 = stablehlo.convert %103 : (tensor<2x2x8x4xi1>) -> tensor<2x2x8x4xf32>
            %105 = stablehlo.dot_general %99, %104, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x2x8x4xf32>
            %106 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x4xf32>
            %107 = stablehlo.constant dense<0x7F800000> : tensor<2x2x2x8x4xf32>
            %108 = stablehlo.compare GT, %105, %106 : (tensor<2x2x2x8x4xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x2x8x4xi1>
            %109 = stablehlo.select %108, %107, %106 : tensor<2x2x2x8x4xi1>, tensor<2x2x2x8x4xf32>
            %110 = stablehlo.not %92 : tensor<2x2x8x4xi1>
            %111 = stablehlo.constant dense<0x7F800000> : tensor<2x2x8x4xf32>
            %112 = stablehlo.compare NE, %46, %111 : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xi1>
            %113 = stablehlo.and %110, %112 : tensor<2x2x8x4xi1>
            %114 = stablehlo.convert %113 : (tensor<2x2x8x4xi1>) -> tensor<2x2x8x4xf32>
            %115 = stablehlo.dot_general %99, %114, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<2x2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x2x8x4xf32>
            %116 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x8x4xf32>
            %117 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x8x4xf32>
            %118 = stablehlo.compare GT, %115, %116 : (tensor<2x2x2x8x4xf32>, tensor<2x2x2x8x4xf32>) -> tensor<2x2x2x8x4xi1>
            %119 = stablehlo.select %118, %117, %116 : tensor<2x2x2x8x4xi1>, tensor<2x2x2x8x4xf32>
            %120 = stablehlo.add %109, %119 : tensor<2x2x2x8x4xf32>
            %121 = stablehlo.add %95, %120 : tensor<2x2x2x8x4xf32>
            stablehlo.return %121 : tensor<2x2x2x8x4xf32>
          }) : (tensor<i1>) -> (tensor<2x2x2x8x4xf32>)
          %122 = stablehlo.broadcast_in_dim %86, dims = [0, 1, 2, 3] : (tensor<2x2x2x8xf32>) -> tensor<2x2x2x8x4xf32>
          %123 = stablehlo.multiply %39, %122 : tensor<2x2x2x8x4xf32>
          %124 = stablehlo.add %123, %98#0 : tensor<2x2x2x8x4xf32>
          stablehlo.return %124, %77, %91 : tensor<2x2x2x8x4xf32>, tensor<2x2x2x8xf32>, tensor<2x2x2x8xf32>
        }, {
          stablehlo.return %39, %40, %41 : tensor<2x2x2x8x4xf32>, tensor<2x2x2x8xf32>, tensor<2x2x2x8xf32>
        }) : (tensor<i1>) -> (tensor<2x2x2x8x4xf32>, tensor<2x2x2x8xf32>, tensor<2x2x2x8xf32>)
        %125 = stablehlo.constant dense<8> : tensor<i32>
        %126 = stablehlo.add %38, %125 : tensor<i32>
        stablehlo.return %126, %58#0, %58#1, %58#2 : tensor<i32>, tensor<2x2x2x8x4xf32>, tensor<2x2x2x8xf32>, tensor<2x2x2x8xf32>
      }
      %127 = stablehlo.constant dense<0> : tensor<i32>
      %128 = stablehlo.dynamic_update_slice %13, %37#1, %127, %127, %127, %12, %127 : (tensor<2x2x2x16x4xf32>, tensor<2x2x2x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x16x4xf32>
      %129 = stablehlo.constant dense<0> : tensor<i32>
      %130 = stablehlo.dynamic_update_slice %14, %37#2, %129, %129, %129, %12 : (tensor<2x2x2x16xf32>, tensor<2x2x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x16xf32>
      %131 = stablehlo.constant dense<0> : tensor<i32>
      %132 = stablehlo.dynamic_update_slice %15, %37#3, %131, %131, %131, %12 : (tensor<2x2x2x16xf32>, tensor<2x2x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x2x16xf32>
      %133 = stablehlo.constant dense<8> : tensor<i32>
      %134 = stablehlo.add %12, %133 : tensor<i32>
      stablehlo.return %134, %128, %130, %132 : tensor<i32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>
    }
    return %11#1, %11#2, %11#3 : tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>
  }
  func.func public @main(%135: tensor<2x2x2x16x8xf32>, %136: tensor<2x2x16x8xf32>, %137: tensor<2x2x16x4xf32>, %138: tensor<2x16xi32>, %139: tensor<1x16xi32>) -> (tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>) {
    %140 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x16x4xf32>
    %141 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x16xf32>
    %142 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x16xf32>
    %143 = "stablehlo.collective_permute"(%136) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x8xf32>) -> tensor<2x2x16x8xf32>
    %144 = "stablehlo.collective_permute"(%137) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2x16x4xf32>) -> tensor<2x2x16x4xf32>
    %145 = "stablehlo.collective_permute"(%139) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<1x16xi32>) -> tensor<1x16xi32>
    %146 = stablehlo.constant dense<0> : tensor<i32>
    %147:3 = func.call @step(%135, %136, %137, %138, %139, %140, %141, %142) : (tensor<2x2x2x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x16xi32>, tensor<1x16xi32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>) -> (tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>)
    %148:6 = stablehlo.optimization_barrier %143, %144, %145, %147#0, %147#1, %147#2 : tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<1x16xi32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>
    %149 = stablehlo.constant dense<1> : tensor<i32>
    %150:3 = func.call @step(%135, %148#0, %148#1, %138, %148#2, %148#3, %148#4, %148#5) : (tensor<2x2x2x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x4xf32>, tensor<2x16xi32>, tensor<1x16xi32>, tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>) -> (tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>)
    %151 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x16xf32>
    %152 = stablehlo.constant dense<0xFF800000> : tensor<2x2x2x16xf32>
    %153 = stablehlo.compare EQ, %150#2, %151 : (tensor<2x2x2x16xf32>, tensor<2x2x2x16xf32>) -> tensor<2x2x2x16xi1>
    %154 = stablehlo.broadcast_in_dim %150#2, dims = [0, 1, 2, 3] : (tensor<2x2x2x16xf32>) -> tensor<2x2x2x16x4xf32>
    %155 = stablehlo.divide %150#0, %154 : tensor<2x2x2x16x4xf32>
    %156 = stablehlo.constant dense<0x00000000> : tensor<2x2x2x16x4xf32>
    %157 = stablehlo.broadcast_in_dim %153, dims = [0, 1, 2, 3] : (tensor<2x2x2x16xi1>) -> tensor<2x2x2x16x4xi1>
    %158 = stablehlo.select %157, %156, %155 : tensor<2x2x2x16x4xi1>, tensor<2x2x2x16x4xf32>
    %159 = stablehlo.log %150#2 : tensor<2x2x2x16xf32>
    %160 = stablehlo.add %150#1, %159 : tensor<2x2x2x16xf32>
    %161 = stablehlo.select %153, %152, %160 : tensor<2x2x2x16xi1>, tensor<2x2x2x16xf32>
    return %158, %161 : tensor<2x2x2x16x4xf32>, tensor<2x2x2x16xf32>
  }
}
