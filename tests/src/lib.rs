//! What the suites share: the specification ([`reference`](mod@reference)), random cases and their data, the comparison, the
//! devices.
//!
//! A [`case::Case`] is plain data that says everything a run depends on. [`data::Tensors`] makes its inputs and the
//! rows that are right for them, [`launch::Launch`] runs it on a [`site::Site`], [`compare::compare`] judges.
//! Suites in `tests/` call [`site::suite`] for fixed cases and [`property::check`] for random ones.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SPLITKV_DEVICE` | devices to run on, separated by commas | every device found |
//! | `SPLITKV_KERNELS` | folder of the compiled kernels | `target/kernels` |
//! | `SPLITKV_CASES` | random cases of each property | 256 on a GPU, 48 in an emulator |
//! | `SPLITKV_SEED` | seed of the random cases | 1 |
//! | `SPLITKV_CASE` | JSON of one case, which runs in place of random ones | |
//! | `SPLITKV_TEST_REPORT` | file for a line of JSON a suite and device: how many cases ran | |

pub mod agreement;
pub mod case;
pub mod compare;
pub mod data;
pub mod feature;
pub mod fp8;
pub mod gauge;
pub mod histogram;
pub mod instructions;
pub mod launch;
pub mod numeric;
pub mod pages;
pub mod places;
pub mod property;
pub mod reference;
pub mod site;
pub mod strategy;
pub mod tolerance;
pub mod wrong;
