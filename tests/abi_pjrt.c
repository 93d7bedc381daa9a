/* Compiled and not run, by tools/check_pjrt_abi.sh: src/pjrt/abi.h has the places, sizes and offsets of the official header. */
#include "pjrt_c_api.h"

#include "pjrt/abi.h"

#define SLOT(ours, theirs)  _Static_assert(offsetof(struct ra__pj_api, slot) + 8 * (ours) == offsetof(PJRT_Api, theirs), #theirs)
#define VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define FIELD(ours, a, theirs, b)                                                                                                \
    _Static_assert(offsetof(struct ours, a) == offsetof(theirs, b) && sizeof(((struct ours *)0)->a) == sizeof(((theirs *)0)->b), \
                   #theirs "." #b)
/* A struct may grow, so the last field that we know tells, and that all before it are as long together. */
#define WHOLE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #theirs)

VALUE(RA__PJ_MAJOR, PJRT_API_MAJOR);
FIELD(ra__pj_api, version, PJRT_Api, pjrt_api_version);
FIELD(ra__pj_version, minor, PJRT_Api_Version, minor_version);
WHOLE(ra__pj_extension, PJRT_Extension_Base);

SLOT(RA__PJ_ERROR_DESTROY, PJRT_Error_Destroy);
SLOT(RA__PJ_ERROR_MESSAGE, PJRT_Error_Message);
SLOT(RA__PJ_ERROR_CODE, PJRT_Error_GetCode);
SLOT(RA__PJ_PLUGIN_INITIALIZE, PJRT_Plugin_Initialize);
SLOT(RA__PJ_EVENT_DESTROY, PJRT_Event_Destroy);
SLOT(RA__PJ_EVENT_AWAIT, PJRT_Event_Await);
SLOT(RA__PJ_CLIENT_CREATE, PJRT_Client_Create);
SLOT(RA__PJ_CLIENT_DESTROY, PJRT_Client_Destroy);
SLOT(RA__PJ_CLIENT_PLATFORM_NAME, PJRT_Client_PlatformName);
SLOT(RA__PJ_CLIENT_PLATFORM_VERSION, PJRT_Client_PlatformVersion);
SLOT(RA__PJ_CLIENT_ADDRESSABLE_DEVICES, PJRT_Client_AddressableDevices);
SLOT(RA__PJ_CLIENT_COMPILE, PJRT_Client_Compile);
SLOT(RA__PJ_CLIENT_BUFFER_FROM_HOST, PJRT_Client_BufferFromHostBuffer);
SLOT(RA__PJ_DESCRIPTION_ID, PJRT_DeviceDescription_Id);
SLOT(RA__PJ_DESCRIPTION_ATTRIBUTES, PJRT_DeviceDescription_Attributes);
SLOT(RA__PJ_DESCRIPTION_KIND, PJRT_DeviceDescription_Kind);
SLOT(RA__PJ_DEVICE_DESCRIPTION, PJRT_Device_GetDescription);
SLOT(RA__PJ_DEVICE_MEMORY_STATS, PJRT_Device_MemoryStats);
SLOT(RA__PJ_EXECUTABLE_DESTROY, PJRT_Executable_Destroy);
SLOT(RA__PJ_EXECUTABLE_OUTPUTS, PJRT_Executable_NumOutputs);
SLOT(RA__PJ_EXECUTABLE_SERIALIZE, PJRT_Executable_Serialize);
SLOT(RA__PJ_LOADED_DESTROY, PJRT_LoadedExecutable_Destroy);
SLOT(RA__PJ_LOADED_EXECUTABLE, PJRT_LoadedExecutable_GetExecutable);
SLOT(RA__PJ_LOADED_DEVICES, PJRT_LoadedExecutable_AddressableDevices);
SLOT(RA__PJ_LOADED_EXECUTE, PJRT_LoadedExecutable_Execute);
SLOT(RA__PJ_DESERIALIZE, PJRT_Executable_DeserializeAndLoad);
SLOT(RA__PJ_BUFFER_DESTROY, PJRT_Buffer_Destroy);
SLOT(RA__PJ_BUFFER_TYPE, PJRT_Buffer_ElementType);
SLOT(RA__PJ_BUFFER_DIMS, PJRT_Buffer_Dimensions);
SLOT(RA__PJ_BUFFER_TO_HOST, PJRT_Buffer_ToHostBuffer);
SLOT(RA__PJ_REQUIRED - 1, PJRT_Buffer_ToHostBuffer);

VALUE(RA__PJ_STRING, PJRT_NamedValue_kString);
VALUE(RA__PJ_INT, PJRT_NamedValue_kInt64);
VALUE(RA__PJ_INT_LIST, PJRT_NamedValue_kInt64List);
VALUE(RA__PJ_FLOAT, PJRT_NamedValue_kFloat);
VALUE(RA__PJ_BOOL, PJRT_NamedValue_kBool);
VALUE(RA__PJ_DURING_CALL, PJRT_HostBufferSemantics_kImmutableOnlyDuringCall);
VALUE(RA__PJ_UNTIL_TRANSFERRED, PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes);
VALUE(RA__PJ_TILED, PJRT_Buffer_MemoryLayout_Type_Tiled);
VALUE(RA__PJ_STRIDED, PJRT_Buffer_MemoryLayout_Type_Strides);
VALUE(RA__PJ_INVALID_ARGUMENT, PJRT_Error_Code_INVALID_ARGUMENT);
VALUE(RA__PJ_DEADLINE_EXCEEDED, PJRT_Error_Code_DEADLINE_EXCEEDED);
VALUE(RA__PJ_RESOURCE_EXHAUSTED, PJRT_Error_Code_RESOURCE_EXHAUSTED);
VALUE(RA__PJ_UNIMPLEMENTED, PJRT_Error_Code_UNIMPLEMENTED);
VALUE(RA__PJ_INTERNAL, PJRT_Error_Code_INTERNAL);
VALUE(RA__PJ_S32, PJRT_Buffer_Type_S32);
VALUE(RA__PJ_U32, PJRT_Buffer_Type_U32);
VALUE(RA__PJ_F16, PJRT_Buffer_Type_F16);
VALUE(RA__PJ_F32, PJRT_Buffer_Type_F32);
VALUE(RA__PJ_BF16, PJRT_Buffer_Type_BF16);

WHOLE(ra__pj_value, PJRT_NamedValue);
FIELD(ra__pj_value, type, PJRT_NamedValue, type);
FIELD(ra__pj_value, is, PJRT_NamedValue, string_value);
FIELD(ra__pj_value, length, PJRT_NamedValue, value_size);

WHOLE(ra__pj_object_args, PJRT_Error_Destroy_Args);
WHOLE(ra__pj_object_args, PJRT_Event_Destroy_Args);
WHOLE(ra__pj_object_args, PJRT_Event_Await_Args);
WHOLE(ra__pj_object_args, PJRT_Client_Destroy_Args);
WHOLE(ra__pj_object_args, PJRT_Executable_Destroy_Args);
WHOLE(ra__pj_object_args, PJRT_LoadedExecutable_Destroy_Args);
WHOLE(ra__pj_object_args, PJRT_Buffer_Destroy_Args);
WHOLE(ra__pj_head, PJRT_Plugin_Initialize_Args);
FIELD(ra__pj_text_args, length, PJRT_Error_Message_Args, message_size);
FIELD(ra__pj_text_args, length, PJRT_Client_PlatformName_Args, platform_name_size);
FIELD(ra__pj_text_args, length, PJRT_Client_PlatformVersion_Args, platform_version_size);
FIELD(ra__pj_text_args, length, PJRT_DeviceDescription_Kind_Args, device_kind_size);
FIELD(ra__pj_number_args, number, PJRT_Error_GetCode_Args, code);
FIELD(ra__pj_number_args, number, PJRT_DeviceDescription_Id_Args, id);
FIELD(ra__pj_number_args, number, PJRT_Buffer_ElementType_Args, type);
FIELD(ra__pj_size_args, number, PJRT_Executable_NumOutputs_Args, num_outputs);
FIELD(ra__pj_list_args, count, PJRT_Client_AddressableDevices_Args, num_addressable_devices);
FIELD(ra__pj_list_args, items, PJRT_LoadedExecutable_AddressableDevices_Args, addressable_devices);
FIELD(ra__pj_list_args, count, PJRT_LoadedExecutable_AddressableDevices_Args, num_addressable_devices);
FIELD(ra__pj_get_args, got, PJRT_Device_GetDescription_Args, device_description);
FIELD(ra__pj_get_args, got, PJRT_LoadedExecutable_GetExecutable_Args, executable);
FIELD(ra__pj_attributes_args, count, PJRT_DeviceDescription_Attributes_Args, num_attributes);
FIELD(ra__pj_attributes_args, values, PJRT_DeviceDescription_Attributes_Args, attributes);

FIELD(ra__pj_client_create_args, option_count, PJRT_Client_Create_Args, num_options);
FIELD(ra__pj_client_create_args, client, PJRT_Client_Create_Args, client);
WHOLE(ra__pj_client_create_args, PJRT_Client_Create_Args);
FIELD(ra__pj_program, format_length, PJRT_Program, format_size);
FIELD(ra__pj_compile_args, program, PJRT_Client_Compile_Args, program);
FIELD(ra__pj_compile_args, options_bytes, PJRT_Client_Compile_Args, compile_options_size);
FIELD(ra__pj_compile_args, executable, PJRT_Client_Compile_Args, executable);
FIELD(ra__pj_serialize_args, count, PJRT_Executable_Serialize_Args, serialized_bytes_size);
FIELD(ra__pj_serialize_args, owner, PJRT_Executable_Serialize_Args, serialized_executable);
FIELD(ra__pj_serialize_args, release, PJRT_Executable_Serialize_Args, serialized_executable_deleter);
FIELD(ra__pj_deserialize_args, count, PJRT_Executable_DeserializeAndLoad_Args, serialized_executable_size);
FIELD(ra__pj_deserialize_args, executable, PJRT_Executable_DeserializeAndLoad_Args, loaded_executable);
WHOLE(ra__pj_deserialize_args, PJRT_Executable_DeserializeAndLoad_Args);

FIELD(ra__pj_layout, tiled, PJRT_Buffer_MemoryLayout, tiled);
FIELD(ra__pj_layout, tiled.tile_count, PJRT_Buffer_MemoryLayout, tiled.num_tiles);
FIELD(ra__pj_layout, type, PJRT_Buffer_MemoryLayout, type);
FIELD(ra__pj_from_host_args, data, PJRT_Client_BufferFromHostBuffer_Args, data);
FIELD(ra__pj_from_host_args, type, PJRT_Client_BufferFromHostBuffer_Args, type);
FIELD(ra__pj_from_host_args, dim_count, PJRT_Client_BufferFromHostBuffer_Args, num_dims);
FIELD(ra__pj_from_host_args, semantics, PJRT_Client_BufferFromHostBuffer_Args, host_buffer_semantics);
FIELD(ra__pj_from_host_args, device, PJRT_Client_BufferFromHostBuffer_Args, device);
FIELD(ra__pj_from_host_args, layout, PJRT_Client_BufferFromHostBuffer_Args, device_layout);
FIELD(ra__pj_from_host_args, done, PJRT_Client_BufferFromHostBuffer_Args, done_with_host_buffer);
FIELD(ra__pj_from_host_args, buffer, PJRT_Client_BufferFromHostBuffer_Args, buffer);
FIELD(ra__pj_to_host_args, layout, PJRT_Buffer_ToHostBuffer_Args, host_layout);
FIELD(ra__pj_to_host_args, bytes, PJRT_Buffer_ToHostBuffer_Args, dst_size);
FIELD(ra__pj_to_host_args, done, PJRT_Buffer_ToHostBuffer_Args, event);
FIELD(ra__pj_dims_args, dims, PJRT_Buffer_Dimensions_Args, dims);
FIELD(ra__pj_dims_args, count, PJRT_Buffer_Dimensions_Args, num_dims);

FIELD(ra__pj_execute_options, launch, PJRT_ExecuteOptions, launch_id);
FIELD(ra__pj_execute_options, not_donatable_count, PJRT_ExecuteOptions, num_non_donatable_input_indices);
FIELD(ra__pj_execute_options, context, PJRT_ExecuteOptions, context);
FIELD(ra__pj_execute_options, incarnations, PJRT_ExecuteOptions, incarnation_ids);
FIELD(ra__pj_execute_args, options, PJRT_LoadedExecutable_Execute_Args, options);
FIELD(ra__pj_execute_args, inputs, PJRT_LoadedExecutable_Execute_Args, argument_lists);
FIELD(ra__pj_execute_args, input_count, PJRT_LoadedExecutable_Execute_Args, num_args);
FIELD(ra__pj_execute_args, outputs, PJRT_LoadedExecutable_Execute_Args, output_lists);
FIELD(ra__pj_execute_args, done, PJRT_LoadedExecutable_Execute_Args, device_complete_events);
FIELD(ra__pj_execute_args, device, PJRT_LoadedExecutable_Execute_Args, execute_device);

FIELD(ra__pj_memory_stats_args, in_use, PJRT_Device_MemoryStats_Args, bytes_in_use);
FIELD(ra__pj_memory_stats_args, limit, PJRT_Device_MemoryStats_Args, bytes_limit);
FIELD(ra__pj_memory_stats_args, limit_known, PJRT_Device_MemoryStats_Args, bytes_limit_is_set);
FIELD(ra__pj_memory_stats_args, peak_pool_known, PJRT_Device_MemoryStats_Args, peak_pool_bytes_is_set);
