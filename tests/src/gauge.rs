//! The gauge: what a fixed set of problems counts on each emulated device, held in a committed file beside what the
//! arithmetic needs.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use splitkv::LaunchCounters;

use crate::case::{Case, Lengths, Splits};
use crate::data::Tensors;
use crate::launch::{Failure, Launch, options, problem};
use crate::numeric::Format;
use crate::site::Site;

/// The committed file.
pub const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/counters.json");
/// Its contents, also where a program was carried to another machine.
const COMMITTED: &str = include_str!("../counters.json");

/// Bytes of a sector.
const SECTOR: f64 = 32.0;

/// The problems, each with a name. Small: all of them take seconds.
fn problems() -> Vec<(&'static str, Case)> {
    let split = |case: Case, splits| Case { splits, ..case };
    let decode = Case::new(1, 1, 512, 2, 4);
    let queries = Case { causal: true, ..Case::new(1, 16, 384, 2, 4) };
    let batch = Case::new(4, 1, 384, 2, 4);
    let lengths = vec![1, 100, 257, 384];
    let (format, head_dim_qk) = (Format::E4m3, 192);
    let short = Case { format, head_dim_qk, ..Case::new(1, 70, 1024, 1, 1) };
    vec![
        ("decode", decode.clone()),
        ("decode, f16 to f32", Case { format: Format::F16, output: Format::F32, ..decode.clone() }),
        ("decode, split", split(decode, Splits::Exact(4))),
        ("decode, a KV head a query head", Case::new(1, 1, 256, 4, 1)),
        ("decode, 16 query heads a KV head", Case::new(1, 1, 512, 1, 16)),
        ("16 queries, causal", queries.clone()),
        ("16 queries, causal, split", split(queries, Splits::Exact(3))),
        ("ragged", Case { lengths: Lengths::Host(lengths.clone()), ..batch.clone() }),
        ("ragged, split by tokens", {
            Case { lengths: Lengths::Host(lengths.clone()), splits: Splits::Tokens(128), ..batch.clone() }
        }),
        ("ragged, lengths on the device, split", {
            Case { lengths: Lengths::Device(lengths), splits: Splits::Exact(2), ..batch }
        }),
        ("e4m3 decode, 16 query heads a KV head", Case { format, ..Case::new(1, 1, 512, 1, 16) }),
        ("e4m3, 70 queries", short.clone()),
        ("e4m3, 70 queries, split", split(short, Splits::Exact(4))),
    ]
}

/// The least that a problem's arithmetic needs, whatever computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// Bytes of K and V of each token that a query sees, and of each query that sees one, read once.
    pub load_bytes: u64,
    /// Bytes of O and LSE.
    pub store_bytes: u64,
    /// Multiply-accumulates of Q K^T and P V for each query, head and visible key.
    pub matrix_macs: u64,
}

impl Needed {
    /// What `case` needs.
    pub fn of(case: &Case) -> Self {
        let (element, heads) = (case.format.size(), case.heads());
        let (mut pairs, mut tokens, mut rows) = (0, 0, 0);
        for (queries, length) in case.query_lengths().into_iter().zip(case.lengths()) {
            let keys = (0..queries).map(|query| case.mask().keys(query, queries, length));
            let seen: Vec<Range<usize>> = keys.filter(|keys| !keys.is_empty()).collect();
            pairs += seen.iter().map(Range::len).sum::<usize>();
            // Windows move on by a key a query: they leave no gap.
            let ends = seen.first().zip(seen.last());
            tokens += ends.map_or(0, |(first, last)| last.end - first.start);
            rows += seen.len();
        }
        let dims = case.head_dim_qk + case.head_dim_v;
        let lse = if case.lse { Format::F32.size() } else { 0 };
        let outputs = case.rows().len();
        Self {
            load_bytes: (element * (tokens * case.kv_heads * dims + rows * heads * case.head_dim_qk)) as u64,
            store_bytes: (outputs * (case.head_dim_v * case.output.size() + lse)) as u64,
            matrix_macs: (pairs * heads * dims) as u64,
        }
    }
}

/// What was done for each unit that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Bytes of the sectors that loads touched.
    pub load_sectors: f64,
    /// Bytes of the sectors that stores touched.
    pub store_sectors: f64,
    /// Multiply-accumulates of matrix instructions.
    pub matrix_macs: f64,
}

impl Overhead {
    /// The overhead of all launches of a problem together, to three digits behind the point.
    fn of(needed: &Needed, launches: &[LaunchCounters]) -> Self {
        let mut total = splitkv::emulator::Counters::default();
        launches.iter().for_each(|launch| total += launch.counters);
        let ratio = |done: f64, needed: u64| (done / needed as f64 * 1e3).round() / 1e3;
        Self {
            load_sectors: ratio(total.global_load_sectors as f64 * SECTOR, needed.load_bytes),
            store_sectors: ratio(total.global_store_sectors as f64 * SECTOR, needed.store_bytes),
            matrix_macs: ratio(total.matrix_macs as f64, needed.matrix_macs),
        }
    }
}

/// What a problem counted on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Done for each unit needed.
    pub overhead: Overhead,
    /// The launches, in order.
    pub launches: Vec<LaunchCounters>,
}

/// A problem of the gauge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name, which no other has.
    pub name: String,
    /// Shapes, types and options, for readers.
    pub problem: String,
    /// What it needs.
    pub needed: Needed,
    /// What it counted, by device.
    pub devices: BTreeMap<String, Measured>,
}

/// The gauge's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gauge(pub Vec<Entry>);

impl Gauge {
    /// The committed gauge.
    ///
    /// # Errors
    /// When the file is not what [`Gauge::to_json`] gives.
    pub fn committed() -> serde_json::Result<Self> {
        serde_json::from_str(COMMITTED)
    }

    /// Runs the problems on emulated devices.
    ///
    /// # Errors
    /// The library's; [`splitkv::Error::Unsupported`] on a device that is not emulated.
    pub fn measure(sites: &[&Site]) -> Result<Self, Failure> {
        let entry = |(name, case): (&str, Case)| {
            let (needed, tensors) = (Needed::of(&case), Tensors::new(&case));
            let measure = |site: &&Site| {
                let mut launch = Launch::new(site, &case, &tensors)?;
                site.device.count_launches()?;
                launch.run()?;
                let launches = site.device.take_counters();
                let measured = Measured { overhead: Overhead::of(&needed, &launches), launches };
                Ok((site.device.name().to_owned(), measured))
            };
            let devices = sites.iter().map(measure).collect::<Result<_, Failure>>()?;
            let problem = format!("{}, splits: {}", problem(&case), options(&case).splits);
            Ok(Entry { name: name.to_owned(), problem, needed, devices })
        };
        problems().into_iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// The part for one device.
    #[must_use]
    pub fn of_device(mut self, device: &str) -> Self {
        self.0.iter_mut().for_each(|entry| entry.devices.retain(|name, _| name == device));
        self
    }

    /// The file's contents.
    ///
    /// # Errors
    /// None in practice.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The counters that differ in `new`. A launch that only one of the two has is one move, of its instructions.
    pub fn moves(&self, new: &Self) -> Vec<Move> {
        let (old, new) = (self.launches(), new.launches());
        let mut keys: Vec<_> = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))).collect();
        keys.sort();
        let mut moves = Vec::new();
        for key in keys {
            let (before, after) = (old.get(key), new.get(key));
            let mut moved = |counter, old, new| {
                let kernel = after.or(before).map(|launch| launch.kernel.clone()).unwrap_or_default();
                let (problem, device) = (key.0.to_owned(), key.1.to_owned());
                moves.push(Move { problem, device, kernel, counter, old, new });
            };
            match (before, after) {
                (Some(before), Some(after)) => {
                    let pairs = before.counters.entries().zip(after.counters.entries());
                    for ((name, old), (_, new)) in pairs.filter(|((_, old), (_, new))| old != new) {
                        moved(name, Some(old), Some(new));
                    }
                }
                _ => {
                    let instructions = |launch: &&LaunchCounters| launch.counters.instructions;
                    moved("instructions", before.map(instructions), after.map(instructions));
                }
            }
        }
        moves
    }

    /// The launches by problem, device and place in the problem's order.
    fn launches(&self) -> BTreeMap<(&str, &str, usize), &LaunchCounters> {
        let mut launches = BTreeMap::new();
        for entry in &self.0 {
            for (device, measured) in &entry.devices {
                for (index, launch) in measured.launches.iter().enumerate() {
                    launches.insert((entry.name.as_str(), device.as_str(), index), launch);
                }
            }
        }
        launches
    }
}

/// A counter that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The problem's name.
    pub problem: String,
    /// The device.
    pub device: String,
    /// The kernel that is launched now, or was if none is.
    pub kernel: String,
    /// The counter's name.
    pub counter: &'static str,
    /// What it was; `None` where there was no such launch.
    pub old: Option<u64>,
    /// What it is.
    pub new: Option<u64>,
}

impl Move {
    /// The change in percent: `+12.5 %`; `new` and `gone` where there is nothing to compare with.
    pub fn change(&self) -> String {
        match (self.old, self.new) {
            (None, _) => "new".into(),
            (_, None) => "gone".into(),
            (Some(0), Some(_)) => "from 0".into(),
            (Some(old), Some(new)) => format!("{:+.1} %", (new as f64 / old as f64 - 1.0) * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_decode_needs() {
        // 512 tokens of 2 KV heads and 8 query rows, 128 + 128 elements of 2 bytes; LSE of 4 bytes.
        let needed = Needed::of(&Case::new(1, 1, 512, 2, 4));
        assert_eq!(needed.load_bytes, 512 * 2 * 256 * 2 + 8 * 128 * 2);
        assert_eq!(needed.store_bytes, 8 * (128 * 2 + 4));
        assert_eq!(needed.matrix_macs, 512 * 8 * 256);
    }

    #[test]
    fn what_masked_and_ragged_problems_need() {
        // Of 3 queries, with 2 keys: none, one and two are visible.
        let causal = Case { causal: true, lse: false, output: Format::F32, ..Case::new(1, 3, 2, 1, 1) };
        let needed = Needed::of(&causal);
        assert_eq!(needed.load_bytes, 2 * (2 * 256 + 2 * 128), "the first query is not looked at");
        assert_eq!((needed.store_bytes, needed.matrix_macs), (3 * 128 * 4, (1 + 2) * 256));
        let ragged = Case { lengths: Lengths::Host(vec![0, 5, 7]), ..Case::new(3, 1, 8, 1, 1) };
        let needed = Needed::of(&ragged);
        assert_eq!(needed.load_bytes, 2 * (12 * 256 + 2 * 128));
        assert_eq!((needed.store_bytes, needed.matrix_macs), (3 * (256 + 4), 12 * 256));
    }

    fn gauge(launches: &[(&str, u64, u64)]) -> Gauge {
        let needed = Needed { load_bytes: 64, store_bytes: 32, matrix_macs: 2048 };
        let launches: Vec<_> = launches
            .iter()
            .map(|&(kernel, instructions, sectors)| {
                let counters =
                    splitkv::emulator::Counters { instructions, global_load_sectors: sectors, ..Default::default() };
                LaunchCounters { kernel: kernel.into(), counters }
            })
            .collect();
        let devices = ["emulator:a", "emulator:b"].map(|device| {
            let launches = launches.clone();
            (device.to_owned(), Measured { overhead: Overhead::of(&needed, &launches), launches })
        });
        let entry = Entry { name: "p".into(), problem: "P".into(), needed, devices: devices.into() };
        Gauge(vec![entry])
    }

    #[test]
    fn overhead_is_of_all_launches() {
        let overhead = gauge(&[("k", 5, 2), ("combine", 5, 1)]).0[0].devices["emulator:a"].overhead;
        assert_eq!(overhead, Overhead { load_sectors: 1.5, store_sectors: 0.0, matrix_macs: 0.0 });
    }

    #[test]
    fn moves_are_named() {
        let old = gauge(&[("k", 100, 4), ("combine", 7, 0)]).of_device("emulator:b");
        assert_eq!(old.moves(&old), []);
        let moves = old.moves(&gauge(&[("k2", 100, 5), ("combine", 7, 2)]).of_device("emulator:b"));
        let found: Vec<_> = moves.iter().map(|m| (m.kernel.as_str(), m.counter, m.old, m.new, m.change())).collect();
        let counter = "global_load_sectors";
        assert_eq!(
            found,
            [
                ("k2", counter, Some(4), Some(5), "+25.0 %".into()),
                ("combine", counter, Some(0), Some(2), "from 0".into())
            ]
        );
        assert!(moves.iter().all(|m| (m.problem.as_str(), m.device.as_str()) == ("p", "emulator:b")));
        let fewer = gauge(&[("k", 90, 4)]).of_device("emulator:b");
        let found: Vec<_> = old.moves(&fewer).into_iter().map(|m| (m.old, m.new, m.change())).collect();
        assert_eq!(found, [(Some(100), Some(90), "-10.0 %".into()), (Some(7), None, "gone".into())]);
        assert_eq!(fewer.moves(&old)[1].change(), "new");
    }

    #[test]
    fn names_are_unique_and_the_file_can_be_read_back() {
        let mut names: Vec<_> = problems().into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), problems().len());
        let gauge = gauge(&[("k", 1, 1)]);
        assert_eq!(serde_json::from_str::<Gauge>(&gauge.to_json().unwrap()).unwrap(), gauge);
    }
}
