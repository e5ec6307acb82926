//! What works while threads go on: barriers in shared memory, copies and matrix units. Each check finds the fault of a
//! small faulty kernel, and leaves its sound twin alone.

mod barriers;
mod copies;
mod layout;
mod pipeline;
mod support;
mod tensor;
mod wgmma;
