//! One call for the common case.

use crate::{
    DType, Descale, Device, Error, Executor, Inputs, Kernels, KvLens, Options, Problem, Result, Tensor, Window, plan,
};

/// What [`attention`] computes beside the tensors' shapes.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// Whether query `i` sees only the keys `j <= i + len - sq`.
    pub causal: bool,
    /// Further bounds of what a query sees.
    pub window: Window,
    /// Factor of the scores; `None`: `1 / sqrt(head_dim_qk)`.
    pub scale: Option<f32>,
    /// `Some(cap)`: scores become `cap * tanh(score / cap)` before the mask.
    pub softcap: Option<f32>,
    /// One more logit of each head, without a value: f32 `[heads]`.
    pub sink: Option<Tensor>,
    /// KV length of each sequence; `None`: all of K and V.
    pub kv_lens: Option<Vec<u32>>,
    /// Whether LSE is wanted.
    pub lse: bool,
    /// Element type of O; `None`: that of Q, or bf16 with e4m3.
    pub o_dtype: Option<DType>,
    /// With e4m3: the factors of Q, K and V, each f32 `[1]` or `[batch, kv_heads]`.
    pub descales: Option<[Tensor; 3]>,
    /// How it is planned.
    pub plan: Options,
}

/// Computes `softmax(mask(scale * q k^T)) v` and waits for it. Gives O `[batch, sq, heads, head_dim_v]` and, where
/// asked for, LSE `[batch, heads, sq]` in f32.
///
/// `q` is `[batch, sq, heads, head_dim_qk]`, `k` `[batch, sk, kv_heads, head_dim_qk]`, `v` `[batch, sk, kv_heads,
/// head_dim_v]`. Plans, allocates and loads anew each time (loaded kernels stay in `kernels`): to run often, make a
/// [`Plan`](crate::Plan) and an [`Executor`] once; packed sequences and pages are theirs too.
///
/// # Errors
/// [`Error::Argument`], which names the tensor or the option; [`Error::OutOfMemory`]; what the driver says.
pub fn attention(
    device: &Device,
    kernels: &Kernels,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &AttentionOptions,
) -> Result<(Tensor, Option<Tensor>)> {
    kernels.check_target(device)?;
    let problem = problem(q, k, v, options)?;
    let plan = plan(&problem, &options.plan, device.props(), kernels.catalogue())?;
    let o = Tensor::uninit(device, problem.o_dtype, &problem.o_shape())?;
    let lse = match problem.lse {
        true => Some(Tensor::uninit(device, DType::F32, &problem.lse_shape())?),
        false => None,
    };
    let stream = device.stream()?;
    let [q_descale, k_descale, v_descale] = options.descales.as_ref().map_or([None; 3], |all| all.each_ref().map(Some));
    let sink = options.sink.as_ref();
    let inputs = Inputs { lse: lse.as_ref(), sink, q_descale, k_descale, v_descale, ..Inputs::new(q, k, v, &o) };
    Executor::new(device, kernels, &plan)?.run(&stream, &inputs)?;
    stream.synchronize()?;
    Ok((o, lse))
}

/// The problem that has tensors of these shapes. The executor compares them with it once more, each as a whole.
fn problem(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions) -> Result<Problem> {
    let [batch, sq, heads, head_dim_qk] = dims("q", q)?;
    let [_, sk, kv_heads, _] = dims("k", k)?;
    let [_, _, _, head_dim_v] = dims("v", v)?;
    let mut problem = Problem {
        head_dim_v,
        causal: options.causal,
        window: options.window,
        scale: options.scale,
        softcap: options.softcap,
        sink: options.sink.is_some(),
        kv_lens: options.kv_lens.clone().map_or(KvLens::Full, KvLens::Host),
        lse: options.lse,
        ..Problem::new(batch, heads, kv_heads, sq, sk, head_dim_qk, q.dtype())
    };
    if let Some(o_dtype) = options.o_dtype {
        problem.o_dtype = o_dtype;
    }
    if let Some(descales) = &options.descales {
        let [q, k, v] = descales.each_ref().map(|descale| match descale.shape() {
            [1] => Descale::PerTensor,
            _ => Descale::PerHead,
        });
        problem = problem.descales(q, k, v);
    }
    Ok(problem)
}

fn dims(name: &'static str, tensor: &Tensor) -> Result<[usize; 4]> {
    tensor.shape().try_into().map_err(|_| {
        let given = format!("shape {:?}", tensor.shape());
        Error::argument(name, given, "four dimensions: [batch, tokens, heads, head dim]")
    })
}
