//! The emulator behind the functions that NVIDIA's and AMD's drivers export.
//!
//! One shared library that stands in for `libcuda.so.1` and for `libamdhip64.so`: `splitkv`'s drivers and cust run
//! on it unchanged, without a GPU. `cargo xtask test` does that; it is also what the feature `cuda` is linked with
//! where nothing else is known to be there.
//!
//! - `runtime` is a device as both makers' drivers see it: memory, modules, streams, events, graphs;
//! - `cuda` and `hip` export it under each maker's names, and hold what differs: contexts, properties, images;
//! - `code` lists the error codes; `boundary` is what C passes.
//!
//! Work is done only when somebody waits for it. That is the latest that a GPU would do it, so memory that is freed
//! too early or a wait that is missing shows each time. A fault of a kernel is printed, comes out of the call that
//! waits, and out of every later one, as on a GPU.
//!
//! Environment: `SPLITKV_EMULATED_CUDA` and `SPLITKV_EMULATED_HIP` name the GPU that is found, `sm_90` and `gfx950`
//! by default. One that the emulator cannot execute can be found, but not used.

mod boundary;
mod code;
mod cuda;
mod hip;
mod runtime;
