//! What the suites share: the reference, random cases and their data, the comparison, the devices.

pub mod case;
pub mod compare;
pub mod data;
pub mod histogram;
pub mod launch;
pub mod numeric;
pub mod property;
pub mod reference;
pub mod site;
pub mod strategy;
pub mod tolerance;
