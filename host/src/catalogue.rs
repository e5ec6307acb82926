//! Which kernels there are.

use kernels_gpu::abi::{self, Geometry, Kernel, Operand, Role, Target};

use crate::{Error, Problem, Result};

/// The kernels that a planner may choose from, all for one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    target: Target,
    kernels: Vec<Kernel>,
}

/// An attention kernel that fits a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    pub(crate) geometry: Geometry,
    pub(crate) q_tiles: u32,
}

impl Catalogue {
    /// Every kernel of the ABI table. To plan without compiled kernels.
    pub fn of(target: Target) -> Self {
        Self::new(target, abi::KERNELS.to_vec())
    }

    /// These kernels only.
    pub fn new(target: Target, kernels: Vec<Kernel>) -> Self {
        Self { target, kernels }
    }

    /// The target that they are compiled for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel that merges splits.
    pub(crate) fn combine(&self) -> Result<Kernel> {
        let combine = self.kernels.iter().find(|kernel| kernel.role == Role::Combine);
        combine.copied().ok_or_else(|| Error::argument("catalogue", "no combine kernel", "one, to merge splits"))
    }

    /// The attention kernels that compute `problem`, fewest query tiles first; at least one.
    pub(crate) fn variants(&self, problem: &Problem) -> Result<Vec<Variant>> {
        let of_dtype: Vec<_> = self.attention().filter(|a| Some(a.operand) == problem.dtype.operand()).collect();
        if of_dtype.is_empty() {
            let allowed = self.names(self.attention().map(|a| format!("{:?}", a.operand).to_lowercase()));
            return Err(Error::argument("dtype", problem.dtype, allowed));
        }
        let dims = (problem.head_dim_qk, problem.head_dim_v);
        let mut fitting: Vec<_> = of_dtype.iter().filter(|a| a.dims() == dims).map(|a| a.variant).collect();
        if fitting.is_empty() {
            let allowed = self.names(of_dtype.iter().map(|a| format!("{}/{}", a.dims().0, a.dims().1)));
            return Err(Error::argument("head_dim_qk/head_dim_v", format_args!("{}/{}", dims.0, dims.1), allowed));
        }
        fitting.sort_by_key(|variant| variant.q_tiles);
        Ok(fitting)
    }

    fn attention(&self) -> impl Iterator<Item = Attention> + '_ {
        self.kernels.iter().filter_map(|&kernel| match kernel.role {
            Role::Attention { operand, head_dim_qk, head_dim_v, q_tiles, .. } => {
                let geometry = kernel.geometry(self.target.vendor())?;
                Some(Attention { operand, head_dim_qk, head_dim_v, variant: Variant { kernel, geometry, q_tiles } })
            }
            Role::Combine | Role::Read { .. } => None,
        })
    }

    /// What is allowed, for an error message.
    fn names(&self, names: impl Iterator<Item = String>) -> String {
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        format!("what {} has kernels for: {names}", self.target.name())
    }
}

struct Attention {
    operand: Operand,
    head_dim_qk: u32,
    head_dim_v: u32,
    variant: Variant,
}

impl Attention {
    fn dims(&self) -> (usize, usize) {
        (self.head_dim_qk as usize, self.head_dim_v as usize)
    }
}
