//! Bit fields, bytes and funnel shifts.

use super::ops::Op;
use super::registers::Registers;

fn extract(signed: bool, width: u32, x: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let value = if position < width { x >> position } else { 0 };
    // The sign is the field's highest bit, or the source's where the field goes beyond it.
    let sign_at = position.saturating_add(length).min(width) - 1;
    let sign = signed && length > 0 && x >> sign_at & 1 != 0;
    let kept = length.min(width.saturating_sub(position));
    let low = if kept == 0 { 0 } else { u64::MAX >> (64 - kept) };
    let all = u64::MAX >> (64 - width);
    if sign { (value & low | !low) & all } else { value & low }
}

fn insert(width: u32, a: u64, b: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 || position >= width {
        return b;
    }
    let length = length.min(width - position);
    let field = (u64::MAX >> (64 - length)) << position;
    b & !field | a << position & field
}

fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(a) | u64::from(b) << 32;
    (0..4).fold(0, |value, i| {
        let select = selector >> (4 * i) & 0xf;
        let byte = (bytes >> (8 * (select & 7))) as u8;
        let byte = if select & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        value | u32::from(byte) << (8 * i)
    })
}

/// Executes an instruction of this kind in the lanes of `mask`.
pub(super) fn execute(r: &mut Registers, mask: u32, op: &Op) {
    match *op {
        Op::BitExtract { signed, wide: false, d, a, position, length } => {
            r.map3(mask, d, (a, position, length), |x: u32, p: u32, l: u32| {
                extract(signed, 32, u64::from(x), p, l) as u32
            });
        }
        Op::BitExtract { signed, wide: true, d, a, position, length } => {
            r.map3(mask, d, (a, position, length), |x: u64, p: u32, l: u32| extract(signed, 64, x, p, l));
        }
        Op::BitInsert { wide, d, a, b, position, length } => {
            let (p, l) = (*r.get::<u32>(position), *r.get::<u32>(length));
            let undefined = r.undefined::<u32>(position) | r.undefined::<u32>(length);
            if wide {
                let (x, y) = (r.get::<u64>(a), r.get::<u64>(b));
                let values = std::array::from_fn(|i| insert(64, x[i], y[i], p[i], l[i]));
                r.set(d, mask, &values, undefined | r.undefined::<u64>(a) | r.undefined::<u64>(b));
            } else {
                let (x, y) = (r.get::<u32>(a), r.get::<u32>(b));
                let values = std::array::from_fn(|i| insert(32, u64::from(x[i]), u64::from(y[i]), p[i], l[i]) as u32);
                r.set(d, mask, &values, undefined | r.undefined::<u32>(a) | r.undefined::<u32>(b));
            }
        }
        Op::Permute { d, a, b, selector } => r.map3(mask, d, (a, b, selector), permute),
        Op::Logic3 { table, d, a, b, c } => r.map3(mask, d, (a, b, c), |x: u32, y: u32, z: u32| {
            (0..8u32).filter(|i| table >> i & 1 != 0).fold(0, |value, i| {
                let pick = |bit: u32, word: u32| if i >> bit & 1 != 0 { word } else { !word };
                value | pick(2, x) & pick(1, y) & pick(0, z)
            })
        }),
        Op::FunnelShift { left, clamp, d, a, b, amount } => {
            r.map3(mask, d, (a, b, amount), |x: u32, y: u32, n: u32| {
                let n = if clamp { n.min(32) } else { n & 31 };
                let both = u64::from(y) << 32 | u64::from(x);
                if left { (both << n >> 32) as u32 } else { (both >> n) as u32 }
            });
        }
        _ => unreachable!("the caller has listed the instructions"),
    }
}
