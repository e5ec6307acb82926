//! A plan that is to be checked and timed.

use anyhow::Result;
use serde::Serialize;
use splitkv::{Buffer, DType, Device, Executor, Inputs, Options, Plan, Problem, Splits, plan};

use crate::arena::{Arena, Set};
use crate::reference::{Check, Checked, Reference};
use crate::session::Session;
use crate::timing::{Timed, is_emulated};
use crate::work::Work;

/// Inputs are rotated through at least so many bytes, far more than a cache holds.
const ROTATED: usize = 512 << 20;
/// More sets than this would make large graphs for tiny problems.
const MOST_SETS: usize = 2048;

/// How many sets of a problem's inputs are rotated on `device`.
pub(crate) fn sets(device: &Device, problem: &Problem) -> usize {
    let bytes = Work::of(problem).kv_bytes as usize;
    // A cache is not emulated.
    if is_emulated(device) { 2 } else { ROTATED.div_ceil(bytes.max(1)).clamp(1, MOST_SETS) }
}

/// A problem with its inputs and what is right for the first set of them.
pub(crate) struct Ready<'a> {
    pub(crate) session: &'a Session,
    pub(crate) sets: Vec<Set>,
    reference: Option<Reference>,
}

impl<'a> Ready<'a> {
    pub(crate) fn new(
        session: &'a Session,
        arena: &Arena,
        problem: &Problem,
        sets: usize,
        check: Check,
    ) -> Result<Self> {
        let sets = (0..sets).map(|index| arena.set(problem, index)).collect::<splitkv::Result<Vec<_>>>()?;
        let reference = Reference::new(arena, &sets[0], problem, check);
        Ok(Self { session, sets, reference })
    }

    /// The plans, ready to run one at a time.
    pub(crate) fn candidates(&self, plans: Vec<Plan>) -> Result<Vec<Candidate>> {
        let Session { device, kernels, .. } = self.session;
        // They run on one stream, one after another.
        let workspace = Buffer::new(device, plans.iter().map(Plan::workspace_bytes).max().unwrap_or(0))?;
        let candidate = |plan: Plan| {
            let executor = if plan.workspace_bytes() == 0 {
                Executor::new(device, kernels, &plan)?
            } else {
                Executor::with_workspace(device, kernels, &plan, workspace.clone())?
            };
            Ok(Candidate { plan, executor })
        };
        plans.into_iter().map(candidate).collect()
    }

    /// Runs the candidate once and compares the rows of the sample.
    pub(crate) fn check(&self, candidate: &mut Candidate) -> Result<Option<Checked>> {
        let set = &self.sets[0];
        set.o.buffer().fill(0xff)?;
        candidate.run(self.session, set)?;
        self.session.stream.synchronize()?;
        Ok(self.reference.as_ref().map(|reference| reference.check(set)).transpose()?)
    }

    /// The candidate's calls on all sets, one after another.
    pub(crate) fn timed(&self, candidate: &mut Candidate) -> Result<Timed<'a>> {
        let stream = &self.session.stream;
        let graph = stream.capture(|| self.sets.iter().try_for_each(|set| candidate.run(self.session, set)))?;
        Ok(Timed { stream, graph, calls: self.sets.len() })
    }
}

/// A plan with what runs it.
pub(crate) struct Candidate {
    pub(crate) plan: Plan,
    executor: Executor,
}

impl Candidate {
    /// Gives one call to the session's stream.
    pub(crate) fn run(&mut self, session: &Session, set: &Set) -> splitkv::Result<()> {
        let factor = set.factor.as_ref();
        let inputs = Inputs {
            lse: set.lse.as_ref(),
            q_descale: factor,
            k_descale: factor,
            v_descale: factor,
            ..Inputs::new(&set.q, &set.k, &set.v, &set.o)
        };
        self.executor.run(&session.stream, &inputs)
    }
}

/// A plan for a session's device and kernels.
pub(crate) fn plan_for(session: &Session, problem: &Problem, options: &Options) -> splitkv::Result<Plan> {
    plan(problem, options, session.device.props(), session.kernels.catalogue())
}

/// What a plan chose, for reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Choice {
    pub(crate) auto: bool,
    pub(crate) num_splits: u32,
    pub(crate) kernel: &'static str,
    pub(crate) q_tiles: u32,
}

impl Choice {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            auto: plan.options().splits == Splits::Auto,
            num_splits: plan.num_splits(),
            kernel: plan.kernel().name,
            q_tiles: plan.q_tiles(),
        }
    }

    /// What tells the kernel from others of the same type and head dims: `splitkv_q1`.
    pub(crate) fn short_kernel(&self) -> String {
        let parts: Vec<_> = self.kernel.rsplit('_').take(2).collect();
        parts.into_iter().rev().collect::<Vec<_>>().join("_")
    }
}

/// Element types of Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Type {
    Bf16,
    F16,
}

impl Type {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::Bf16,
            Self::F16 => DType::F16,
        }
    }
}
