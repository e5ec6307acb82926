//! The reference and the strategies that the suites share.
