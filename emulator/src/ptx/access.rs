//! Loads, stores, atomics and asynchronous copies.

use super::decode::{LOCAL_WINDOW, SHARED_WINDOW};
use super::ops::{Address, AnyReg, AtomicOp, Space, Ty, Vector};
use super::registers::{FULL, LANES};
use super::warp::{Context, Copy, lanes_of};
use crate::FaultKind;
use crate::banks::Banks;
use crate::counters::sectors;
use crate::fault::Trap;
use crate::memory::Data;
use crate::races::Access;

/// Most bytes that one access of [`crate::memory`] has.
const CHUNK: u32 = 16;

/// The address that each executing lane accesses; 0 in the others.
pub(super) fn addresses(cx: &Context<'_, '_>, address: Address) -> Result<[u64; LANES], Trap> {
    cx.need_defined(cx.warp.registers.any_undefined(address.base), "an address")?;
    let mut addresses = [0; LANES];
    for lane in lanes_of(cx.mask) {
        addresses[lane] = cx.warp.registers.any_lane(address.base, lane).0.wrapping_add(address.offset as u64);
    }
    Ok(addresses)
}

/// The space that a generic address is in, and the address there.
pub(super) fn resolve(space: Space, address: u64) -> (Space, u64) {
    let inside = |window: u64| address >= window && address - window < 1 << 32;
    match space {
        Space::Generic if inside(SHARED_WINDOW) => (Space::Shared, address - SHARED_WINDOW),
        Space::Generic if inside(LOCAL_WINDOW) => (Space::Local, address - LOCAL_WINDOW),
        Space::Generic => (Space::Global, address),
        space => (space, address),
    }
}

/// A shared address; beyond 32 bits is outside in any case.
pub(super) fn shared_address(address: u64) -> u32 {
    u32::try_from(address).unwrap_or(u32::MAX)
}

/// Counts a warp's access of `bytes` a lane.
fn count(cx: &mut Context<'_, '_>, space: Space, addresses: &[u64; LANES], bytes: u32, stores: bool) {
    let place = |lane: usize| resolve(space, addresses[lane]);
    let lanes_in =
        |space| lanes_of(cx.mask).filter(|&lane| place(lane).0 == space).fold(0, |all, lane| all | 1 << lane);
    let moved = |lanes: u32| u64::from(bytes) * u64::from(lanes.count_ones());
    let (global, shared): (u32, u32) = (lanes_in(Space::Global), lanes_in(Space::Shared));
    let counters = &mut cx.block.counters;
    if shared != 0 {
        *(if stores { &mut counters.shared_store_bytes } else { &mut counters.shared_load_bytes }) += moved(shared);
        let address = |lane| shared_address(place(lane).1);
        counters.bank_conflicts += Banks::nvidia(bytes).conflicts(shared.into(), bytes, address);
    }
    if global != 0 {
        let sectors = sectors(lanes_of(global).map(|lane| (place(lane).1, bytes)));
        if stores {
            counters.global_store_bytes += moved(global);
            counters.global_store_sectors += sectors;
        } else {
            counters.global_load_bytes += moved(global);
            counters.global_load_sectors += sectors;
        }
    }
}

/// Words of up to 32 bytes a lane, by word and lane.
struct Words {
    values: [[u32; LANES]; 8],
    undefined: [u32; 8],
}

impl Words {
    const EMPTY: Self = Self { values: [[0; LANES]; 8], undefined: [0; 8] };

    fn put(&mut self, lane: usize, first: usize, data: Data, words: usize) {
        for i in 0..words {
            self.values[first + i][lane] = data.words[i];
            self.undefined[first + i] |= u32::from(data.undefined >> i & 1) << lane;
        }
    }

    fn get(&self, lane: usize, first: usize, words: usize) -> Data {
        let mut data = Data::default();
        for i in 0..words {
            data.words[i] = self.values[first + i][lane];
            data.undefined |= ((self.undefined[first + i] >> lane & 1) as u8) << i;
        }
        data
    }
}

/// ld.
pub(super) fn load(
    cx: &mut Context<'_, '_>,
    address: Address,
    access: Access,
    ty: Ty,
    elements: u8,
    d: &Vector,
) -> Result<(), Trap> {
    let bytes = ty.bytes() * u32::from(elements);
    let addresses = addresses(cx, address)?;
    count(cx, address.space, &addresses, bytes, false);
    let mut words = Words::EMPTY;
    if address.space == Space::Param {
        // Parameters are the same for all threads, and their addresses too.
        let lane = cx.mask.trailing_zeros() as usize % LANES;
        let data = load_parameter(cx, addresses[lane], bytes).map_err(|kind| cx.trap(kind, lane, None))?;
        for (to, word) in words.values.iter_mut().zip(data.words) {
            *to = [word; LANES];
        }
    } else {
        for lane in lanes_of(cx.mask) {
            for chunk in (0..bytes).step_by(CHUNK as usize) {
                let size = (bytes - chunk).min(CHUNK);
                let at = addresses[lane].wrapping_add(chunk.into());
                let data = load_lane(cx, address.space, access, lane, at, size, bytes)
                    .map_err(|kind| cx.trap(kind, lane, Some(at)))?;
                words.put(lane, chunk as usize / 4, data, size.div_ceil(4) as usize);
            }
        }
    }
    for (element, to) in d.iter().take(elements.into()).enumerate() {
        if let Some(to) = to {
            set_element(cx, *to, ty, element, &words);
        }
    }
    Ok(())
}

/// Puts an element of what was loaded into its register, extended to the register's width.
fn set_element(cx: &mut Context<'_, '_>, to: AnyReg, ty: Ty, element: usize, words: &Words) {
    let size = ty.bytes() as usize;
    let (word, shift) = (element * size / 4, element * size % 4 * 8);
    let (mask, undefined) = (cx.mask, words.undefined[word]);
    let low = &words.values[word];
    match (to, size) {
        (AnyReg::R32(reg), 4) => cx.warp.registers.set(reg, mask, low, undefined),
        (AnyReg::R64(reg), 8) => {
            let high = &words.values[word + 1];
            let values = std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32);
            cx.warp.registers.set(reg, mask, &values, undefined | words.undefined[word + 1]);
        }
        (to, size) => {
            let unused = 64 - size * 8;
            let extend = |lane: usize| {
                let value = u64::from(low[lane] >> shift) << unused;
                if ty.signed() { (value as i64 >> unused) as u64 } else { value >> unused }
            };
            match to {
                AnyReg::R32(reg) => {
                    let values = std::array::from_fn(|lane| extend(lane) as u32);
                    cx.warp.registers.set(reg, mask, &values, undefined);
                }
                AnyReg::R64(reg) => cx.warp.registers.set(reg, mask, &std::array::from_fn(extend), undefined),
            }
        }
    }
}

fn load_parameter(cx: &Context<'_, '_>, address: u64, bytes: u32) -> Result<Data, FaultKind> {
    let size = cx.program.parameter_bytes;
    let start = usize::try_from(address).unwrap_or(usize::MAX);
    let from = cx.block.launch.parameters.get(start..start.saturating_add(bytes as usize));
    let from = from.ok_or(FaultKind::ParameterOutOfBounds { bytes, size })?;
    let mut data = Data::default();
    for (i, byte) in from.iter().enumerate() {
        data.words[i / 4] |= u32::from(*byte) << (i % 4 * 8);
    }
    Ok(data)
}

/// Loads part of a lane's access, whose whole is `align` bytes.
#[inline]
fn load_lane(
    cx: &mut Context<'_, '_>,
    space: Space,
    access: Access,
    lane: usize,
    address: u64,
    bytes: u32,
    align: u32,
) -> Result<Data, FaultKind> {
    let align = align.min(bytes);
    match resolve(space, address) {
        (Space::Shared, address) => {
            let thread = cx.thread(lane);
            cx.block.shared.read(thread, shared_address(address), bytes, align)
        }
        (Space::Local, address) => {
            let at = local_range(cx, lane, address, bytes, align)?;
            let mut data = Data::default();
            for (i, at) in at.enumerate() {
                data.words[i / 4] |= u32::from(cx.warp.local[at]) << (i % 4 * 8);
                data.undefined |= u8::from(!cx.warp.local_defined[at]) << (i / 4);
            }
            Ok(data)
        }
        (_, address) => cx.block.global_read(cx.site(lane), access, address, bytes, align),
    }
}

/// Bytes of a lane's local memory.
fn local_range(
    cx: &Context<'_, '_>,
    lane: usize,
    address: u64,
    bytes: u32,
    align: u32,
) -> Result<std::ops::Range<usize>, FaultKind> {
    let size = cx.program.local_bytes;
    if address.checked_add(bytes.into()).is_none_or(|end| end > size.into()) {
        return Err(FaultKind::LocalOutOfBounds { bytes, size });
    }
    if !address.is_multiple_of(u64::from(align)) {
        return Err(FaultKind::Misaligned { align });
    }
    let start = lane * size as usize + address as usize;
    Ok(start..start + bytes as usize)
}

/// st.
pub(super) fn store(
    cx: &mut Context<'_, '_>,
    address: Address,
    access: Access,
    ty: Ty,
    elements: u8,
    a: &Vector,
) -> Result<(), Trap> {
    let size = ty.bytes();
    let bytes = size * u32::from(elements);
    let addresses = addresses(cx, address)?;
    count(cx, address.space, &addresses, bytes, true);
    let mut words = Words::EMPTY;
    for (element, from) in a.iter().take(elements.into()).flatten().enumerate() {
        let offset = element * size as usize;
        let (word, shift) = (offset / 4, offset % 4 * 8);
        let undefined = cx.warp.registers.any_undefined(*from);
        words.undefined[word] |= undefined;
        match *from {
            AnyReg::R32(reg) => {
                let kept = u32::MAX >> (32 - size.min(4) * 8);
                for (to, from) in words.values[word].iter_mut().zip(cx.warp.registers.get::<u32>(reg)) {
                    *to |= (from & kept) << shift;
                }
            }
            AnyReg::R64(reg) => {
                words.undefined[word + 1] |= undefined;
                for (lane, from) in cx.warp.registers.get::<u64>(reg).iter().enumerate() {
                    words.values[word][lane] = *from as u32;
                    words.values[word + 1][lane] = (*from >> 32) as u32;
                }
            }
        }
    }
    for lane in lanes_of(cx.mask) {
        for chunk in (0..bytes).step_by(CHUNK as usize) {
            let size = (bytes - chunk).min(CHUNK);
            let at = addresses[lane].wrapping_add(chunk.into());
            let data = words.get(lane, chunk as usize / 4, size.div_ceil(4) as usize);
            store_lane(cx, address.space, access, lane, at, (size, bytes), data)
                .map_err(|kind| cx.trap(kind, lane, Some(at)))?;
        }
    }
    Ok(())
}

/// Stores part of a lane's access: `bytes` is the part's size and the whole's.
#[inline]
fn store_lane(
    cx: &mut Context<'_, '_>,
    space: Space,
    access: Access,
    lane: usize,
    address: u64,
    bytes: (u32, u32),
    data: Data,
) -> Result<(), FaultKind> {
    let (bytes, align) = (bytes.0, bytes.1.min(bytes.0));
    match resolve(space, address) {
        (Space::Shared, address) => {
            let thread = cx.thread(lane);
            cx.block.shared.write(thread, shared_address(address), bytes, align, data)?;
            cx.block.made_progress();
            Ok(())
        }
        (Space::Local, address) => {
            for (i, at) in local_range(cx, lane, address, bytes, align)?.enumerate() {
                cx.warp.local[at] = (data.words[i / 4] >> (i % 4 * 8)) as u8;
                cx.warp.local_defined[at] = data.undefined >> (i / 4) & 1 == 0;
            }
            Ok(())
        }
        (_, address) => cx.block.global_write(cx.site(lane), access, address, bytes, align, data),
    }
}

fn apply(op: AtomicOp, wide: bool, old: u64, b: u64, c: u64) -> Option<u64> {
    let signed = |x: u64| if wide { x as i64 } else { i64::from(x as i32) };
    let new = match op {
        AtomicOp::Add => old.wrapping_add(b),
        AtomicOp::AddF32 => (f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits().into(),
        AtomicOp::MinU => old.min(b),
        AtomicOp::MaxU => old.max(b),
        AtomicOp::MinS => signed(old).min(signed(b)) as u64,
        AtomicOp::MaxS => signed(old).max(signed(b)) as u64,
        AtomicOp::And => old & b,
        AtomicOp::Or => old | b,
        AtomicOp::Xor => old ^ b,
        AtomicOp::Exchange => b,
        AtomicOp::CompareExchange => return (old == b).then_some(c),
        AtomicOp::Increment => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    };
    Some(if wide { new } else { new & u64::from(u32::MAX) })
}

/// atom and red. The lanes' operations come one after the other.
pub(super) fn atomic(
    cx: &mut Context<'_, '_>,
    address: Address,
    op: AtomicOp,
    bytes: u32,
    d: Option<AnyReg>,
    b: AnyReg,
    c: Option<AnyReg>,
) -> Result<(), Trap> {
    const SINK: &str = "an atomic operation";
    let addresses = addresses(cx, address)?;
    let undefined = cx.warp.registers.any_undefined(b) | c.map_or(0, |c| cx.warp.registers.any_undefined(c));
    cx.need_defined(undefined, SINK)?;
    for lane in lanes_of(cx.mask) {
        let at = addresses[lane];
        let b = cx.warp.registers.any_lane(b, lane).0;
        let c = c.map_or(0, |c| cx.warp.registers.any_lane(c, lane).0);
        let update = |old| apply(op, bytes == 8, old, b, c);
        let result = match resolve(address.space, at) {
            (Space::Shared, at) => {
                let thread = cx.thread(lane);
                cx.block.made_progress();
                cx.block.shared.atomic(thread, shared_address(at), bytes, update)
            }
            (Space::Global, at) => cx.block.global_atomic(cx.site(lane), at, bytes, update),
            _ => Err(FaultKind::Illegal { what: "an atomic operation on local memory".into() }),
        };
        let (old, undefined) = result.map_err(|kind| cx.trap(kind, lane, Some(at)))?;
        if undefined {
            return Err(cx.trap(FaultKind::Undefined { sink: SINK }, lane, Some(at)));
        }
        if let Some(d) = d {
            cx.warp.registers.set_any_lane(d, lane, old, false);
        }
    }
    Ok(())
}

/// cp.async: `used` bytes come from global memory (all if it is `None`), the rest are zeros.
pub(super) fn copy_async(
    cx: &mut Context<'_, '_>,
    to: Address,
    from: Address,
    bytes: u32,
    used: Option<super::ops::Reg>,
) -> Result<(), Trap> {
    let (to, from) = (addresses(cx, to)?, addresses(cx, from)?);
    let used = match used {
        Some(reg) => {
            cx.need_defined(cx.warp.registers.undefined::<u32>(reg), "an address")?;
            *cx.warp.registers.get::<u32>(reg)
        }
        None => [bytes; LANES],
    };
    let read = |lane: usize| (from[lane], used[lane].min(bytes));
    let counters = &mut cx.block.counters;
    counters.global_load_sectors += sectors(lanes_of(cx.mask).map(read));
    counters.global_load_bytes += lanes_of(cx.mask).map(|lane| u64::from(read(lane).1)).sum::<u64>();
    counters.shared_store_bytes += u64::from(bytes) * u64::from(cx.mask.count_ones());
    counters.bank_conflicts += Banks::nvidia(bytes).conflicts(cx.mask.into(), bytes, |lane| shared_address(to[lane]));
    for lane in lanes_of(cx.mask) {
        if used[lane] > bytes {
            let what = format!("a copy of {bytes} bytes that reads {}", used[lane]);
            return Err(cx.trap(FaultKind::Illegal { what }, lane, None));
        }
        if !from[lane].is_multiple_of(u64::from(bytes)) {
            return Err(cx.trap(FaultKind::Misaligned { align: bytes }, lane, Some(from[lane])));
        }
        let data = read_prefix(cx, lane, from[lane], used[lane]);
        let data = data.map_err(|kind| cx.trap(kind, lane, Some(from[lane])))?;
        let (thread, address) = (cx.thread(lane), shared_address(to[lane]));
        cx.block
            .shared
            .begin_async(thread, address, bytes, bytes, data)
            .map_err(|kind| cx.trap(kind, lane, Some(to[lane])))?;
        let group = cx.warp.committed[lane];
        cx.warp.copies.push(Copy { group, lane: lane as u32, address, bytes });
    }
    cx.block.made_progress();
    Ok(())
}

/// The first `bytes` bytes at an address that is a multiple of 4; zeros behind them.
fn read_prefix(cx: &mut Context<'_, '_>, lane: usize, address: u64, bytes: u32) -> Result<Data, FaultKind> {
    let site = cx.site(lane);
    if bytes.is_multiple_of(4) {
        return if bytes == 0 {
            Ok(Data::default())
        } else {
            cx.block.global_read(site, Access::Read, address, bytes, 4)
        };
    }
    let mut data = Data::default();
    for i in 0..bytes {
        let byte = cx.block.global_read(site, Access::Read, address + u64::from(i), 1, 1)?;
        data.words[i as usize / 4] |= byte.words[0] << (i % 4 * 8);
        data.undefined |= byte.undefined << (i / 4);
    }
    Ok(data)
}

/// cp.async.commit_group.
pub(super) fn commit_copies(cx: &mut Context<'_, '_>) {
    for lane in lanes_of(cx.mask) {
        cx.warp.committed[lane] += 1;
    }
}

/// cp.async.wait_group and wait_all: all groups of the thread but the last `pending` have arrived.
pub(super) fn wait_copies(cx: &mut Context<'_, '_>, pending: Option<u32>) -> Result<(), Trap> {
    if pending.is_none() {
        commit_copies(cx);
        for lane in lanes_of(cx.mask) {
            cx.units.finish_arrivals_of(cx.thread(lane), cx.block)?;
        }
    }
    let (mask, pending) = (cx.mask, pending.unwrap_or(0));
    let first = cx.warp.index * LANES as u32;
    let (committed, shared) = (cx.warp.committed, &mut cx.block.shared);
    cx.warp.copies.retain(|copy| {
        let arrived = mask >> copy.lane & 1 != 0 && copy.group + pending < committed[copy.lane as usize];
        if arrived {
            shared.finish_async(first + copy.lane, copy.address, copy.bytes);
        }
        !arrived
    });
    cx.block.made_progress();
    Ok(())
}

/// Counts a warp's access to shared memory in rows of 16 bytes.
pub(super) fn count_rows(cx: &mut Context<'_, '_>, rows: &[u64], stores: bool) {
    let bytes = rows.len() as u64 * 16;
    let counters = &mut cx.block.counters;
    *(if stores { &mut counters.shared_store_bytes } else { &mut counters.shared_load_bytes }) += bytes;
    let lanes = u64::MAX >> (64 - rows.len());
    counters.bank_conflicts += Banks::nvidia(16).conflicts(lanes, 16, |lane| shared_address(rows[lane]));
}

/// All lanes, or a fault: matrix instructions are for whole warps.
pub(super) fn need_whole_warp(cx: &Context<'_, '_>) -> Result<(), Trap> {
    if cx.mask == FULL {
        return Ok(());
    }
    Err(cx.trap_all(FaultKind::Divergent { active: cx.mask.into(), needed: FULL.into() }))
}
