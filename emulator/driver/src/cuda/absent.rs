//! Functions that cust refers to and the emulator has not. They have to be there, because a program's references are
//! looked up when it starts, whether or not it gets to them.

macro_rules! absent {
    ($($name:ident)*) => {
        crate::boundary::exports! { $(fn $name() { Err(crate::code::Code::NotSupported) })* }
    };
}
absent! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayDestroy cuCtxCreate_v2 cuCtxDestroy_v2
    cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetFlags cuCtxGetLimit cuCtxGetSharedMemConfig
    cuCtxGetStreamPriorityRange cuCtxSetCacheConfig cuCtxSetLimit cuCtxSetSharedMemConfig
    cuDestroyExternalMemory cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags_v2
    cuExternalMemoryGetMappedBuffer cuFuncGetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig
    cuGraphAddKernelNode cuGraphCreate cuGraphDebugDotPrint cuGraphGetEdges cuGraphGetNodes
    cuGraphKernelNodeGetParams cuGraphNodeGetType cuImportExternalMemory cuLaunchHostFunc cuLinkAddData_v2
    cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuMemAdvise cuMemAllocAsync cuMemAllocHost_v2 cuMemAllocManaged
    cuMemAllocPitch_v2 cuMemFreeAsync cuMemFreeHost cuMemGetInfo_v2 cuMemPrefetchAsync cuMemcpy2D_v2
    cuMemcpyAtoH_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyHtoA_v2
    cuMemcpyHtoDAsync_v2 cuMemsetD16Async cuMemsetD16_v2 cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async
    cuModuleGetGlobal_v2 cuModuleLoad cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxPotentialBlockSize cuStreamGetFlags
    cuStreamGetPriority cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuTexObjectCreate
    cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
}
