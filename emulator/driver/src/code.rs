//! The drivers' error codes. AMD took NVIDIA's numbers over, so that there is one list.

use std::ffi::CStr;

macro_rules! codes {
    ($($code:ident = $number:literal, $cuda:literal, $hip:literal, $text:literal;)*) => {
        /// Why a call failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code {
            $(#[doc = $text] $code = $number,)*
        }

        /// Number, NVIDIA's name, AMD's name, explanation.
        const TABLE: &[(u32, &str, &str, &str)] = &[$(($number, concat!($cuda, "\0"), concat!($hip, "\0"), concat!($text, "\0")),)*];
    };
}
codes! {
    InvalidValue = 1, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue", "invalid argument";
    OutOfMemory = 2, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory", "out of memory";
    NotInitialized = 3, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized", "initialization error";
    NoDevice = 100, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice", "no device is detected";
    InvalidDevice = 101, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice", "invalid device ordinal";
    InvalidImage = 200, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage", "device kernel image is invalid";
    InvalidContext = 201, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext", "invalid device context";
    NoBinary = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device";
    InvalidPtx = 218, "CUDA_ERROR_INVALID_PTX", "hipErrorInvalidKernelFile", "a PTX JIT compilation failed";
    InvalidHandle = 400, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle", "invalid resource handle";
    IllegalState = 401, "CUDA_ERROR_ILLEGAL_STATE", "hipErrorIllegalState", "the operation cannot be performed in the present state";
    NotFound = 500, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound", "named symbol not found";
    NotReady = 600, "CUDA_ERROR_NOT_READY", "hipErrorNotReady", "device not ready";
    IllegalAddress = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress", "an illegal memory access was encountered";
    LaunchFailed = 719, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure", "unspecified launch failure";
    NotSupported = 801, "CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported", "operation not supported by the emulator";
    CaptureUnsupported = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing";
    CaptureInvalidated = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture";
    CaptureIsolation = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "hipErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream";
    CaptureImplicit = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "hipErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream";
    CapturedEvent = 907, "CUDA_ERROR_CAPTURED_EVENT", "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream";
    CaptureWrongThread = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "hipErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread";
}

/// What a call says when it went well.
const SUCCESS: (u32, &str, &str, &str) = (0, "CUDA_SUCCESS\0", "hipSuccess\0", "no error\0");

/// NVIDIA's name of a code, AMD's, and the explanation; `None` for an unknown code.
pub(crate) fn describe(number: u32) -> Option<[&'static CStr; 3]> {
    let (_, cuda, hip, text) = [SUCCESS].iter().chain(TABLE).find(|row| row.0 == number)?;
    Some([cuda, hip, text].map(|text| CStr::from_bytes_with_nul(text.as_bytes()).expect("one zero byte, at the end")))
}
