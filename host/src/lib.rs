//! Split-KV attention for model inference, with kernels in Rust for NVIDIA and AMD GPUs.
//!
//! The way of a call: a [`Problem`] says what is computed, [`plan()`] decides how (kernel, splits of the KV sequence,
//! workspace), an [`Executor`] runs the [`Plan`] on a [`Device`] as often as wanted. [`attention()`] does all of it at
//! once.
//!
//! Plans need no device, so they can be looked at anywhere:
//!
//! ```
//! use splitkv::{Catalogue, DType, DeviceProps, Options, Problem, Splits, Target, plan};
//!
//! // One sequence of 131072 tokens, 32 query heads that share 8 KV heads.
//! let problem = Problem::new(1, 32, 8, 1, 131_072, 128, DType::Bf16);
//! let device = DeviceProps::h200();
//! let catalogue = Catalogue::of(Target::Sm90a);
//!
//! let chosen = plan(&problem, &Options::default(), &device, &catalogue)?;
//! println!("{chosen}");
//! assert_eq!(chosen.num_splits(), 16);
//!
//! let asked = Options { splits: Splits::Exact(4), ..Options::default() };
//! assert_eq!(plan(&problem, &asked, &device, &catalogue)?.num_splits(), 4);
//! # Ok::<(), splitkv::Error>(())
//! ```
//!
//! Running one:
//!
//! ```no_run
//! use splitkv::half::bf16;
//! use splitkv::{DType, Device, Executor, Inputs, Kernels, Options, Problem, Tensor, plan};
//!
//! let device = Device::best()?;
//! let kernels = Kernels::find(device.props().target)?;
//! let problem = Problem::new(1, 32, 8, 1, 4096, 128, DType::Bf16);
//! let plan = plan(&problem, &Options::default(), device.props(), kernels.catalogue())?;
//!
//! let q = Tensor::from_host(&device, &vec![bf16::ONE; 32 * 128], &problem.q_shape())?;
//! let k = Tensor::zeros(&device, DType::Bf16, &problem.k_shape())?;
//! let v = Tensor::zeros(&device, DType::Bf16, &problem.v_shape())?;
//! let o = Tensor::uninit(&device, DType::Bf16, &problem.o_shape())?;
//!
//! let stream = device.stream()?;
//! let mut executor = Executor::new(&device, &kernels, &plan)?;
//! executor.run(&stream, &Inputs::new(&q, &k, &v, &o))?;
//! stream.synchronize()?;
//! let o: Vec<bf16> = o.to_host()?;
//! # Ok::<(), splitkv::Error>(())
//! ```
//!
//! Devices are named `cuda:0` (with the cargo feature `cuda`), `hip:0` (opened at run time), and, where there is no
//! GPU, `emulator:sm_90a`, `emulator:sm_100f`, `emulator:gfx950` (the cargo feature `emulator`, on by default).
//!
//! The cargo feature `embed-kernels` puts the compiled kernels, compressed, into the program that is built: those of the
//! folder that `SPLITKV_KERNELS` names at build time, else of the workspace's `target/kernels`.

mod artefacts;
mod attention;
mod buffer;
mod catalogue;
mod device;
mod driver;
mod dtype;
mod e4m3;
mod error;
mod executor;
mod foreign;
mod kernels;
mod layout;
pub mod manifest;
mod merge;
mod options;
mod plan;
mod problem;
mod props;
mod reader;
mod stream;
mod tensor;
#[cfg(test)]
mod tests;

pub use half;
pub use kernels_gpu::abi::{BlockShape, Geometry, Kernel, Target};
#[cfg(feature = "emulator")]
pub use splitkv_emulator as emulator;

pub use self::attention::{AttentionOptions, attention};
pub use self::buffer::Buffer;
pub use self::catalogue::Catalogue;
pub use self::device::{Device, DeviceInfo};
#[cfg(feature = "emulator")]
pub use self::driver::LaunchCounters;
pub use self::dtype::{DType, Element};
pub use self::e4m3::{E4m3, Quantized};
pub use self::error::{Error, Result};
pub use self::executor::{Executor, Inputs, Status};
pub use self::kernels::Kernels;
pub use self::layout::{KvLayout, Lengths, Offsets, PageTable, Queries, Window};
pub use self::merge::{HostPartial, LseBase, Merge, Partial, merge_on_host};
pub use self::options::{Options, Splits};
#[doc(inline)]
pub use self::plan::{KernelLaunch, KernelReason, Launch, Merging, Plan, Ragged, Reason, Unit, plan};
pub use self::problem::{Descale, KvLens, Problem};
pub use self::props::DeviceProps;
pub use self::reader::Reader;
pub use self::stream::{Event, Graph, Stream};
pub use self::tensor::Tensor;
