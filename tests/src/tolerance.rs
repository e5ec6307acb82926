//! What a row of the output may differ by from the reference.
//!
//! A correct kernel with 16-bit matrix operands differs from [`crate::reference`] by three roundings:
//!
//! 1. Each probability is rounded to the input's format before it meets V. In row terms the output moves by
//!    `sum_j p_j e_j v_j` with `|e_j| <= u`, the format's unit roundoff. Around the row's own mean
//!    (`sum_j p_j v_j = o`) this is `o sum_j p_j e_j + sum_j p_j e_j (v_j - o)`. The first part is at most
//!    `u |o|`. The second adds up like noise, because rounding knows nothing of V: its deviation is below
//!    `u spread`, where `spread^2 = sum_j p_j^2 (v_j - o)^2`; four times that is beyond seven deviations, for
//!    rounding errors are spread evenly. Probabilities near underflow have an absolute error, not a relative
//!    one; it enters in the same place.
//! 2. Scores are summed in fp32. A score is off by at most `2^-20` of `scale * sum_d |q_d k_d|`: eight steps of
//!    a matrix unit that truncates, and the scaling. (`2^-13` with e4m3 in runs for a real Hopper GPU: its FP8
//!    unit keeps that many bits of a product behind the largest one's first, "DeepSeek-V3 Technical Report", section
//!    3.5.2; an H200 was seen to be off by `2^-14.2` with one key, whose LSE is its score.) That moves a probability by the same relative amount,
//!    so it is added to `u`; and it moves the LSE by that amount. A softcap moves a score by no more than it was off
//!    before (its slope is at most 1), and is off itself by `2^-21` of the cap: with `e = exp(2x)` from an
//!    approximate exponential (relative error `2^-22`, and `|x| 2^-22` from rounding its argument),
//!    `tanh x = 1 - 2 / (e + 1)` is off by `2e / (e + 1)^2 <= 1/2` of `e`'s error, where `|x|` times that is below
//!    1/2 too, and by two roundings of numbers below 2.
//!    A sink's logit is multiplied by log2(e) in fp32, which is off by `2^-22` of it with the subtraction of the
//!    maximum: its weight moves by that relative amount, O and LSE by the weight's part of it.
//! 3. The output is rounded to its own format: `u_o |o|`.
//!
//! The usual test of attention kernels allows twice the largest error of a reference computed in the same
//! format ([`same_format`]), over the whole tensor. Row by row that alone is not sound: with few keys a row of
//! the same-format reference can be right by luck (one key: always), and then a correct kernel fails.
//! And over the whole tensor it is not sharp: one short row sets the tolerance of rows over long KV, whose values
//! are a hundred times smaller, and a dropped tile hides. So a row's tolerance is twice the largest error of its own
//! same-format reference, plus a floor made of 1 to 3, which says what luck may hide. It shrinks with the KV
//! as the output does.
//!
//! A row that sees no key has no tolerance: O is 0 exactly, and LSE is -inf exactly, or the sink's logit up to its
//! conversion.

use kernels_gpu::abi::Target;

use crate::numeric::Format;
use crate::reference::{Attention, sum_of, sum_over_keys};
use crate::site::sites;

/// Absolute tolerance of the LSE on top of the scores' own and of its own rounding: fp32 exp2 and log2, sums, merges.
pub const LSE: f64 = 1e-5;

/// What an output row should be, and how far it may be off.
#[derive(Clone, Debug)]
pub struct Row {
    /// O.
    pub o: Vec<f64>,
    /// Natural log of the sum of exponentials.
    pub lse: f64,
    /// Largest difference allowed to any element of O.
    pub o_tolerance: f64,
    /// Largest difference allowed to the LSE.
    pub lse_tolerance: f64,
}

impl Row {
    /// The row of `attention`, computed with operands of `format` and stored as `output`.
    pub fn new(attention: &Attention<'_>, row: [usize; 3], format: Format, output: Format) -> Self {
        // With the vectors that the CPU has. Each sum has its order, so that they change no bit.
        pulp::Arch::new().dispatch(|| Self::compute(attention, row, format, output))
    }

    #[inline(always)]
    fn compute(attention: &Attention<'_>, row: [usize; 3], format: Format, output: Format) -> Self {
        let [_, _, head] = row;
        let scores = attention.scores(row);
        let (o, lse) = attention.row(row, &scores);
        let sink_error = sink_error(attention.sink(head), lse);
        if scores.is_empty() {
            return Self { o, lse, o_tolerance: 0.0, lse_tolerance: sink_error };
        }
        let values = attention.values(row);
        let score_error = score_error(attention, row, format);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);

        let relative = format.roundoff() + score_error;
        let least = format.underflow() / format.weight_scale() * (max - lse).exp();
        let errors: Vec<f64> = scores.iter().map(|score| (score - lse).exp() * relative + least).collect();
        let total_error = sink_error + errors.iter().sum::<f64>();
        let spread = sum_over_keys(&errors, &values, &o, |term| term * term);
        let same = same_format(&scores, &values, lse, format, output);
        let same_error = largest(same.iter().zip(&o).map(|(same, o)| same - o));
        let magnitude = largest(o.iter().copied());
        let spread = spread.into_iter().fold(0.0, f64::max).sqrt();
        let o_tolerance =
            2.0 * same_error + magnitude * (total_error + 2.0 * output.roundoff()) + 3.0 * spread + output.underflow();
        let lse_tolerance = LSE + score_error + sink_error + lse.abs() * 2f64.powi(-22);
        Self { o, lse, o_tolerance, lse_tolerance }
    }
}

/// The same row with the roundings that matrix operands bring: probabilities (relative to the row's
/// largest, and scaled) in `format`, what they are divided by unrounded, the output in `output`. There is a key.
#[inline(always)]
pub fn same_format(scores: &[f64], values: &[&[f64]], lse: f64, format: Format, output: Format) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weight = |score: &f64| format.round((score - max).exp() * format.weight_scale()) / format.weight_scale();
    let weights: Vec<f64> = scores.iter().map(weight).collect();
    let same = sum_over_keys(&weights, values, &vec![0.0; values[0].len()], |term| term);
    same.into_iter().map(|same| output.round(same * (max - lse).exp())).collect()
}

/// Whether this run is for a real Hopper GPU, among others.
fn has_hopper() -> bool {
    sites().iter().any(|site| !site.is_emulated() && site.device.props().target == Target::Sm90a)
}

/// Bound of a row's error in its scores, in absolute terms.
#[inline(always)]
fn score_error(attention: &Attention<'_>, [sequence, query, head]: [usize; 3], format: Format) -> f64 {
    let q = attention.q.vector(sequence, query, head);
    let products = |key| {
        let k = attention.k.vector(sequence, key, attention.kv_head(head));
        sum_of(q, k, |q, k| (q * k).abs())
    };
    let largest = attention.keys(sequence, query).map(products).fold(0.0, f64::max);
    let coarse = format == Format::E4m3 && has_hopper();
    let relative = if coarse { 2f64.powi(-13) } else { 2f64.powi(-20) };
    relative * attention.scale.abs() * largest + attention.softcap.map_or(0.0, |cap| 2f64.powi(-21) * cap)
}

/// Bound of the error that a sink brings into a row's sum, relative to that, and so into its LSE.
fn sink_error(sink: f64, lse: f64) -> f64 {
    if sink == f64::NEG_INFINITY { 0.0 } else { 2f64.powi(-22) * sink.abs() * (sink - lse).exp() }
}

/// The largest magnitude; NaN is passed over.
pub fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |largest, value| largest.max(value.abs()))
}
