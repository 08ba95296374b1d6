//! Generators of mixes. They use only integers, so a seed gives the same mix on every machine.

use super::{Mix, MixFunction, MixRequest};
use crate::random::SplitMix;

/// Number of requests in a mix.
const REQUESTS: usize = 4000;
const MB: u64 = 1_000_000;
/// Time of a reload in addition to the transfer of its bytes: a request to the device and its
/// answer.
const RELOAD_FIXED_US: u64 = 300;
/// Bytes per microsecond from host memory, and from disk.
const HOST_BYTES_PER_US: u64 = 10_000;
const DISK_BYTES_PER_US: u64 = 1_000;

/// Generates a mix of the repository.
pub fn generate(name: &str) -> Option<Mix> {
    let (index, (name, make)) = GENERATORS.iter().enumerate().find(|(_, (known, _))| *known == name)?;
    let seed = index as u64 + 1;
    let mut recorder = Recorder { random: SplitMix::new(seed), now_ms: 0, functions: vec![], requests: vec![] };
    let about = make(&mut recorder).into();
    // Memory for two fifths of all functions' bytes.
    let memory_bytes = recorder.functions.iter().map(|function| function.bytes).sum::<u64>() * 2 / 5;
    Some(Mix {
        name: (*name).into(),
        about,
        seed,
        memory_bytes,
        functions: recorder.functions,
        requests: recorder.requests,
    })
}

type Generator = fn(&mut Recorder) -> &'static str;

/// The seed of a mix is its position in this table, from 1.
const GENERATORS: &[(&str, Generator)] = &[
    ("uniform", uniform),
    ("zipf", zipf),
    ("scan", scan),
    ("phases", phases),
    ("bursts", bursts),
    ("periodic", periodic),
    ("anticorrelated", anticorrelated),
    ("chains", chains),
    ("tiers", tiers),
    ("loop", loop_),
];

struct Recorder {
    random: SplitMix,
    now_ms: u64,
    functions: Vec<MixFunction>,
    requests: Vec<MixRequest>,
}

impl Recorder {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next() % bound
    }

    /// Adds a best-effort function of tenant 0 that is reloaded from host memory.
    fn function(&mut self, bytes: u64) -> &mut MixFunction {
        let reload_us = RELOAD_FIXED_US + bytes / HOST_BYTES_PER_US;
        self.functions.push(MixFunction { bytes, reload_us, real_time: false, tenant: 0 });
        self.functions.last_mut().expect("a function was pushed above")
    }

    /// Adds `count` functions of 12 to 192 MB. Each doubling of the size has the same probability,
    /// so small functions are more frequent.
    fn functions_of_all_sizes(&mut self, count: usize) {
        for _ in 0..count {
            let doublings = self.below(4);
            let bytes = ((12 * MB) << doublings) + self.below((12 * MB) << doublings);
            self.function(bytes);
        }
    }

    /// Adds a request, on average `mean_ms` after the previous one.
    fn request(&mut self, mean_ms: u64, functions: &[usize]) {
        self.now_ms += self.below(2 * mean_ms + 1);
        self.requests.push(MixRequest { at_ms: self.now_ms, functions: functions.into() });
    }

    /// A random index below `count` by Zipf's law: index `i` has the weight 1 / (i + 1).
    fn zipf(&mut self, count: usize) -> usize {
        let weight = |index: usize| MB / (index as u64 + 1);
        let total: u64 = (0..count).map(weight).sum();
        let mut rest = self.below(total);
        for index in 0..count {
            match rest.checked_sub(weight(index)) {
                Some(left) => rest = left,
                None => return index,
            }
        }
        count - 1
    }
}

fn uniform(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(32);
    for _ in 0..REQUESTS {
        let function = mix.below(32) as usize;
        mix.request(50, &[function]);
    }
    "32 functions, each as likely as the others"
}

fn zipf(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(32);
    for _ in 0..REQUESTS {
        let function = mix.zipf(32);
        mix.request(50, &[function]);
    }
    "32 functions by Zipf's law, their sizes at random"
}

fn scan(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(40);
    let mut next = 0;
    for _ in 0..REQUESTS {
        let function = if mix.below(2) == 0 {
            mix.below(8) as usize
        } else {
            next = (next + 1) % 32;
            8 + next
        };
        mix.request(50, &[function]);
    }
    "8 functions that are always asked for, and a scan over 32 others"
}

fn phases(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(32);
    for index in 0..REQUESTS {
        // Each fifth of the requests ranks the functions differently.
        let turn = index * 5 / REQUESTS;
        let function = (mix.zipf(32) * 5 + turn * 11) % 32;
        mix.request(50, &[function]);
    }
    "five phases; in each Zipf's law ranks 32 functions differently"
}

fn bursts(mix: &mut Recorder) -> &'static str {
    for tenant in 0..6 {
        mix.functions_of_all_sizes(6);
        mix.functions.iter_mut().skip(6 * tenant as usize).for_each(|function| function.tenant = tenant);
    }
    let mut tenant = 0;
    while mix.requests.len() < REQUESTS {
        tenant = (tenant + 1 + mix.below(5) as usize) % 6;
        for _ in 0..10 + mix.below(60) {
            // Every tenth request in a burst is from a random tenant.
            let of = if mix.below(10) == 0 { mix.below(6) as usize } else { tenant };
            let function = 6 * of + mix.zipf(6);
            mix.request(20, &[function]);
        }
        mix.now_ms += 2000;
    }
    "six tenants with six functions each; one after the other has a burst"
}

fn periodic(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(30);
    let periods_ms = [100, 250, 400, 1000, 1500, 3000];
    mix.functions[..periods_ms.len()].iter_mut().for_each(|function| function.real_time = true);
    let mut due_ms = periods_ms;
    let mut sweep = 0;
    while mix.requests.len() < REQUESTS {
        let (index, &at_ms) = due_ms.iter().enumerate().min_by_key(|(_, due)| **due).expect("there are six periods");
        // Best-effort requests arrive until the next real-time one is due.
        while mix.now_ms + 40 < at_ms {
            sweep = (sweep + 1) % 24;
            mix.request(40, &[6 + sweep]);
        }
        mix.now_ms = mix.now_ms.max(at_ms);
        let jitter_ms = mix.below(3);
        mix.request(0, &[index]);
        due_ms[index] = at_ms + periods_ms[index] + jitter_ms;
    }
    "six real-time functions at their own periods, beside a sweep over 24 best-effort ones"
}

fn anticorrelated(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(32);
    mix.functions.sort_by_key(|function| function.bytes);
    for _ in 0..REQUESTS {
        let function = mix.zipf(32);
        mix.request(50, &[function]);
    }
    "Zipf's law, and the rarer a function the larger it is"
}

fn chains(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(36);
    for _ in 0..REQUESTS {
        // One of eight detectors, a stage of this chain only, and one of four last stages.
        let chain = mix.zipf(24);
        mix.request(80, &[chain % 8, 8 + chain, 32 + chain % 4]);
    }
    "24 chains of three functions, of which some stages are shared"
}

fn tiers(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(32);
    for index in 0..32 {
        let function = &mut mix.functions[index];
        if index % 3 == 0 {
            function.reload_us = 10 * RELOAD_FIXED_US + function.bytes / DISK_BYTES_PER_US;
        }
    }
    for _ in 0..REQUESTS {
        let function = mix.zipf(32);
        mix.request(50, &[function]);
    }
    "Zipf's law; a third of the functions come back from disk, the others from host memory"
}

fn loop_(mix: &mut Recorder) -> &'static str {
    mix.functions_of_all_sizes(20);
    for index in 0..REQUESTS {
        mix.request(50, &[index % 20]);
    }
    "20 functions in turn, more than fit"
}
