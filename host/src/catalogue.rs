//! Which kernels there are.

use kernels_gpu::abi::{self, BlockShape, Geometry, Kernel, Operand, Role, Target};

use crate::{Error, KvLayout, Problem, Result, Window};

/// The kernels that a planner may choose from, all for the devices of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    target: Target,
    kernels: Vec<Kernel>,
}

/// An attention kernel with what it was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    pub(crate) geometry: Geometry,
    pub(crate) operand: Operand,
    pub(crate) head_dim_qk: usize,
    pub(crate) head_dim_v: usize,
    pub(crate) shape: BlockShape,
    pub(crate) q_tiles: u32,
    pub(crate) paged: bool,
}

impl Variant {
    /// Head dims of Q and K, and of V and O.
    pub(crate) fn dims(&self) -> (usize, usize) {
        (self.head_dim_qk, self.head_dim_v)
    }

    /// Whether it has what `problem` asks for beside type, head dims and layout.
    fn serves(&self, problem: &Problem) -> bool {
        let masked = problem.effective_window() != Window::default() || problem.softcap.is_some();
        self.shape != BlockShape::Warpgroups || !masked
    }

    /// Packed query rows that a block owns.
    pub(crate) fn block_rows(&self) -> usize {
        (self.q_tiles * self.geometry.tile_m) as usize
    }
}

impl Catalogue {
    /// Every kernel of the ABI table that runs on `target`'s devices. To plan without compiled kernels.
    pub fn of(target: Target) -> Self {
        let own_and_base = |kernel: &&Kernel| {
            [Some(target), target.base()].iter().flatten().any(|target| kernel.targets.contains(target))
        };
        Self::new(target, abi::KERNELS.iter().filter(own_and_base).copied().collect())
    }

    /// These kernels only.
    pub fn new(target: Target, kernels: Vec<Kernel>) -> Self {
        Self { target, kernels }
    }

    /// The target on whose devices they run.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The attention kernels that compute `problem` (a valid one), at least one: those of its type with the smallest
    /// head dims that hold its own. [`Options`](crate::Options) choose among them.
    ///
    /// # Errors
    /// [`Error::Argument`] with the problem's field that there is no kernel for.
    pub fn fitting(&self, problem: &Problem) -> Result<Vec<Kernel>> {
        Ok(self.variants(problem)?.iter().map(|variant| variant.kernel).collect())
    }

    /// The kernel that merges splits.
    pub(crate) fn combine(&self) -> Result<Kernel> {
        let combine = self.kernels.iter().find(|kernel| kernel.role == Role::Combine);
        combine.copied().ok_or_else(|| Error::argument("catalogue", "no combine kernel", "one, to merge splits"))
    }

    /// The kernel that shares splits out by lengths on the device.
    pub(crate) fn schedule(&self) -> Result<Kernel> {
        let schedule = self.kernels.iter().find(|kernel| kernel.role == Role::Schedule);
        schedule.copied().ok_or_else(|| Error::argument("catalogue", "no schedule kernel", "one, for ragged batches"))
    }

    /// The kernel that merges a caller's partial results.
    pub(crate) fn merge(&self) -> Result<Kernel> {
        let merge = self.kernels.iter().find(|kernel| kernel.role == Role::Merge);
        merge.copied().ok_or_else(|| Error::argument("kernels", "no merge kernel", "one"))
    }

    /// [`Catalogue::fitting`]'s kernels, by block shape (those that split the KV over warps first, special ones last) and
    /// query tiles.
    pub(crate) fn variants(&self, problem: &Problem) -> Result<Vec<Variant>> {
        let of_dtype: Vec<_> = self.attention().filter(|a| Some(a.operand) == problem.dtype.operand()).collect();
        if of_dtype.is_empty() {
            let allowed = self.names(self.attention().map(|a| format!("{:?}", a.operand).to_lowercase()));
            return Err(Error::argument("dtype", problem.dtype, allowed));
        }
        let paged = matches!(problem.kv, KvLayout::Paged { .. });
        let of_dtype: Vec<_> = of_dtype.into_iter().filter(|a| a.paged == paged).collect();
        if of_dtype.is_empty() {
            let layout = if paged { "paged" } else { "not paged" };
            let allowed = self.names(self.attention().map(|a| if a.paged { "paged" } else { "not paged" }.to_owned()));
            return Err(Error::argument("kv", layout, allowed));
        }
        let dims = (problem.head_dim_qk, problem.head_dim_v);
        let most_qk = of_dtype.iter().map(|a| a.head_dim_qk).max().unwrap_or(0);
        let most_v = of_dtype.iter().map(|a| a.head_dim_v).max().unwrap_or(0);
        for (name, dim, most) in [("head_dim_qk", dims.0, most_qk), ("head_dim_v", dims.1, most_v)] {
            if dim > most {
                return Err(Error::argument(
                    name,
                    dim,
                    format_args!("a multiple of {}, at most {most}", problem.dim_multiple()),
                ));
            }
        }
        let holds = |a: &&Variant| a.head_dim_qk >= dims.0 && a.head_dim_v >= dims.1;
        let Some(smallest) = of_dtype.iter().filter(holds).map(Variant::dims).min_by_key(|&(qk, v)| (qk + v, qk))
        else {
            let allowed = self.names(of_dtype.iter().map(|a| format!("up to {}/{}", a.head_dim_qk, a.head_dim_v)));
            return Err(Error::argument("head_dim_qk/head_dim_v", format_args!("{}/{}", dims.0, dims.1), allowed));
        };
        let mut fitting: Vec<_> = of_dtype.into_iter().filter(|a| a.dims() == smallest && a.serves(problem)).collect();
        let order = |shape| match shape {
            BlockShape::SplitKv => 0,
            BlockShape::Warpgroups => 1,
            _ => 2,
        };
        fitting.sort_by_key(|variant| (order(variant.shape), variant.q_tiles));
        Ok(fitting)
    }

    fn attention(&self) -> impl Iterator<Item = Variant> + '_ {
        self.kernels.iter().filter_map(|&kernel| match kernel.role {
            Role::Attention { operand, head_dim_qk, head_dim_v, shape, q_tiles, paged } => Some(Variant {
                kernel,
                geometry: kernel.geometry(self.target.vendor())?,
                operand,
                head_dim_qk: head_dim_qk as usize,
                head_dim_v: head_dim_v as usize,
                shape,
                q_tiles,
                paged,
            }),
            Role::Combine | Role::Merge | Role::Schedule | Role::Read { .. } => None,
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
