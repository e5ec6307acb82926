//! The attention of a small server: a paged KV cache, sequences that come, fork and go, one query a step, and now and
//! then four guessed tokens that are verified at once. Each step is checked against attention worked out on the host.
//!
//! `cargo run --release --example server [DEVICE]`, where DEVICE is `cuda:0`, `hip:0`, `emulator:sm_90a`, ...

use splitkv::half::bf16;
use splitkv::{
    DType, Device, Executor, Inputs, Kernels, KvLens, Options, PageTable, Problem, Result, Stream, Tensor, plan,
};

/// Sequences that the server holds at once.
const SLOTS: usize = 4;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const PAGE_SIZE: usize = 16;
const PAGES: usize = 64;
/// Pages that a sequence may have.
const WIDTH: usize = 12;
/// Elements of K, or of V, of a token.
const ROW: usize = KV_HEADS * DIM;

fn main() -> Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::best()?,
    };
    let worst = serve(&device)?;
    println!("{}: no output is further than {worst:.4} from the reference", device.name());
    Ok(())
}

/// Serves a few requests and returns the largest error of any output.
fn serve(device: &Device) -> Result<f64> {
    let mut server = Server::new(device)?;
    let mut worst = 0.0f64;
    // Two prompts. The second one is forked: its pages are shared until one of the two grows into them.
    server.sequences[0] = Some(Sequence::default());
    server.append(0, 70)?;
    server.sequences[1] = Some(Sequence::default());
    server.append(1, 37)?;
    server.fork(1, 2)?;
    for step in 0..12 {
        for slot in server.living() {
            server.append(slot, 1)?;
        }
        worst = worst.max(server.step(1)?);
        match step {
            // Four guessed tokens of each sequence, verified at once; only two are kept.
            4 => {
                for slot in server.living() {
                    server.append(slot, 4)?;
                }
                worst = worst.max(server.step(4)?);
                for slot in server.living() {
                    server.take_back(slot, 2);
                }
            }
            6 => server.end(0),
            8 => {
                server.sequences[3] = Some(Sequence::default());
                server.append(3, 100)?;
            }
            _ => {}
        }
    }
    Ok(worst)
}

/// A sequence: its pages, and on the host what they hold, to check with.
#[derive(Clone, Default)]
struct Sequence {
    pages: Vec<usize>,
    /// K and V of each token.
    tokens: Vec<[Vec<bf16>; 2]>,
}

struct Server {
    device: Device,
    stream: Stream,
    /// Plans for one query a sequence and for four, made once.
    executors: [(usize, Executor); 2],
    sequences: [Option<Sequence>; SLOTS],
    /// How many sequences use each page.
    users: [usize; PAGES],
    cache: [Tensor; 2],
    page_table: Tensor,
    kv_lens: Tensor,
    seed: u64,
}

impl Server {
    fn new(device: &Device) -> Result<Self> {
        let kernels = Kernels::find(device.props().target)?;
        let executor = |sq: usize| -> Result<(usize, Executor)> {
            let problem = Problem::new(SLOTS, HEADS, KV_HEADS, sq, WIDTH * PAGE_SIZE, DIM, DType::Bf16)
                .paged(PAGES, PAGE_SIZE, PageTable::Device { width: WIDTH })
                .kv_lens(KvLens::Device)
                .causal(true);
            let plan = plan(&problem, &Options::default(), device.props(), kernels.catalogue())?;
            Ok((sq, Executor::new(device, &kernels, &plan)?))
        };
        let cache = || Tensor::zeros(device, DType::Bf16, &[PAGES, PAGE_SIZE, KV_HEADS, DIM]);
        Ok(Self {
            device: device.clone(),
            stream: device.stream()?,
            executors: [executor(1)?, executor(4)?],
            sequences: Default::default(),
            users: [0; PAGES],
            cache: [cache()?, cache()?],
            page_table: Tensor::zeros(device, DType::I32, &[SLOTS, WIDTH])?,
            kv_lens: Tensor::zeros(device, DType::I32, &[SLOTS])?,
            seed: 1,
        })
    }

    fn living(&self) -> Vec<usize> {
        (0..SLOTS).filter(|&slot| self.sequences[slot].is_some()).collect()
    }

    fn free_page(&mut self) -> usize {
        let page = self.users.iter().position(|&users| users == 0).expect("the pool is large enough");
        self.users[page] = 1;
        page
    }

    /// Adds `count` tokens to a sequence. A page that others use too is copied before it is written to.
    fn append(&mut self, slot: usize, count: usize) -> Result<()> {
        for _ in 0..count {
            let mut sequence = self.sequences[slot].take().expect("a living sequence");
            let (index, place) = (sequence.tokens.len() / PAGE_SIZE, sequence.tokens.len() % PAGE_SIZE);
            if index == sequence.pages.len() {
                sequence.pages.push(self.free_page());
            } else if self.users[sequence.pages[index]] > 1 {
                self.users[sequence.pages[index]] -= 1;
                sequence.pages[index] = self.free_page();
                for (place, token) in sequence.tokens[index * PAGE_SIZE..].iter().enumerate() {
                    self.write(sequence.pages[index], place, token)?;
                }
            }
            let token = [self.random(ROW), self.random(ROW)];
            self.write(sequence.pages[index], place, &token)?;
            sequence.tokens.push(token);
            self.sequences[slot] = Some(sequence);
        }
        Ok(())
    }

    /// Writes a token's K and V into the cache.
    fn write(&self, page: usize, place: usize, token: &[Vec<bf16>; 2]) -> Result<()> {
        for (cache, row) in self.cache.iter().zip(token) {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            cache.buffer().write((page * PAGE_SIZE + place) * ROW * 2, &bytes)?;
        }
        Ok(())
    }

    /// The sequence `to` goes on where `from` is now, on the same pages.
    fn fork(&mut self, from: usize, to: usize) -> Result<()> {
        let sequence = self.sequences[from].clone().expect("a living sequence");
        for &page in &sequence.pages {
            self.users[page] += 1;
        }
        self.sequences[to] = Some(sequence);
        Ok(())
    }

    /// Drops a sequence's last tokens.
    fn take_back(&mut self, slot: usize, count: usize) {
        let sequence = self.sequences[slot].as_mut().expect("a living sequence");
        sequence.tokens.truncate(sequence.tokens.len() - count);
        for page in sequence.pages.drain(sequence.tokens.len().div_ceil(PAGE_SIZE)..) {
            self.users[page] -= 1;
        }
    }

    fn end(&mut self, slot: usize) {
        for page in self.sequences[slot].take().expect("a living sequence").pages {
            self.users[page] -= 1;
        }
    }

    /// Attention of the last `sq` tokens of every sequence; the largest error.
    fn step(&mut self, sq: usize) -> Result<f64> {
        // What an empty slot and the rest of a row hold does not matter.
        let (mut table, mut lens) = (vec![-1; SLOTS * WIDTH], vec![0; SLOTS]);
        for slot in self.living() {
            let sequence = self.sequences[slot].as_ref().expect("a living sequence");
            lens[slot] = sequence.tokens.len() as i32;
            for (index, &page) in sequence.pages.iter().enumerate() {
                table[slot * WIDTH + index] = page as i32;
            }
        }
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        self.page_table.buffer().write(0, &bytes(&table))?;
        self.kv_lens.buffer().write(0, &bytes(&lens))?;

        let queries = self.random(SLOTS * sq * HEADS * DIM);
        let q = Tensor::from_host(&self.device, &queries, &[SLOTS, sq, HEADS, DIM])?;
        let o = Tensor::uninit(&self.device, DType::Bf16, &[SLOTS, sq, HEADS, DIM])?;
        let [k, v] = &self.cache;
        let inputs =
            Inputs { page_table: Some(&self.page_table), kv_lens: Some(&self.kv_lens), ..Inputs::new(&q, k, v, &o) };
        let (_, executor) = self.executors.iter_mut().find(|(queries, _)| *queries == sq).expect("a plan for it");
        executor.run(&self.stream, &inputs)?;
        self.stream.synchronize()?;
        let status = executor.status()?;
        assert!(status.is_ok(), "{status}");

        let o: Vec<bf16> = o.to_host()?;
        let mut worst = 0.0f64;
        for slot in self.living() {
            let tokens = &self.sequences[slot].as_ref().expect("a living sequence").tokens;
            for row in 0..sq * HEADS {
                let (query, head) = (row / HEADS, row % HEADS);
                let place = (slot * sq * HEADS + row) * DIM;
                // The last query sees all tokens, the one before it one less.
                let seen = &tokens[..tokens.len() - (sq - 1 - query)];
                let want = reference(&queries[place..place + DIM], seen, head / (HEADS / KV_HEADS));
                for (got, want) in o[place..place + DIM].iter().zip(want) {
                    worst = worst.max((got.to_f64() - want).abs());
                }
            }
        }
        Ok(worst)
    }

    /// Values from -1 to 1.
    fn random(&mut self, count: usize) -> Vec<bf16> {
        let mut next = || {
            // Knuth's MMIX generator; the high bits are the good ones.
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bf16::from_f64((self.seed >> 33) as f64 / f64::from(1 << 30) - 1.0)
        };
        (0..count).map(|_| next()).collect()
    }
}

/// softmax(q k / sqrt(d)) v of one query over `tokens`.
fn reference(q: &[bf16], tokens: &[[Vec<bf16>; 2]], kv_head: usize) -> Vec<f64> {
    let part = |row: &[bf16]| row[kv_head * DIM..(kv_head + 1) * DIM].iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let score = |k: &[bf16]| part(k).iter().zip(q).map(|(k, q)| k * q.to_f64()).sum::<f64>() / (DIM as f64).sqrt();
    let weights: Vec<_> = tokens.iter().map(|[k, _]| score(k).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut o = vec![0.0; DIM];
    for (weight, [_, v]) in weights.iter().zip(tokens) {
        for (o, v) in o.iter_mut().zip(part(v)) {
            *o += weight / sum * v;
        }
    }
    o
}

#[cfg(test)]
#[test]
fn every_step_gives_the_reference() {
    let worst = serve(&Device::best().unwrap()).unwrap();
    assert!(worst < 0.01, "{worst}");
}
