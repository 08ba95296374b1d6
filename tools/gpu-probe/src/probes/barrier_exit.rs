//! Whether a barrier waits only for threads that have not exited. Otherwise the kernel hangs, and
//! the process is killed from outside.

use crate::bench::Bench;
use crate::device::{DeviceWords, ProbeError};
use crate::report::{Findings, Row};
use atoll_cuda::{Arg, Module};

const BARRIER_EXIT_PTX: &str = include_str!("../../kernels/barrier_exit.ptx");

const THREADS: u32 = 256;
const BLOCKS: u32 = 512;
/// Numbers of threads that stay: whole warps exit, parts of warps exit, almost all exit, none exit.
const STAYING: [u32; 7] = [128, 100, 33, 31, 1, 255, 256];

/// What thread `t` of `stay` computes from its neighbours.
fn expected(thread: u32, stay: u32) -> u32 {
    thread + (thread + 1) % stay + (thread + 2) % stay
}

/// Runs both kernels for every number of staying threads, and checks all results.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    let module = Module::load(&bench.context, BARRIER_EXIT_PTX.as_bytes())?;
    let stream = bench.stream(false)?;
    let out = DeviceWords::new(&bench.context, (BLOCKS * THREADS) as usize)?;
    let progress = DeviceWords::new(&bench.context, BLOCKS as usize / 4)?;
    for stay in STAYING {
        out.fill(u8::MAX)?;
        module.kernel("early_exit")?.launch(&stream, BLOCKS, THREADS, &[Arg::U64(out.address()), Arg::U32(stay)])?;
        stream.synchronize()?;
        found.push(Row::text(format!("{stay} of {THREADS} threads stay"), "values", verdict(&out.read()?, stay)));

        out.fill(u8::MAX)?;
        progress.fill(0)?;
        let args = [Arg::U64(out.address()), Arg::U32(stay), Arg::U64(progress.address())];
        module.kernel("counted_exit")?.launch(&stream, BLOCKS, THREADS, &args)?;
        stream.synchronize()?;
        found.push(Row::text(
            format!("{stay} of {THREADS} threads stay, counted"),
            "values",
            verdict(&out.read()?, stay),
        ));
        let missing = progress.read()?.iter().flat_map(|word| word.to_le_bytes()).filter(|&byte| byte != 1).count();
        let text = if missing == 0 { "correct".to_owned() } else { format!("WRONG: {missing} of {BLOCKS} missing") };
        found.push(Row::text(format!("{stay} of {THREADS} threads stay, counted"), "progress bytes", text));
    }
    Ok(())
}

fn verdict(words: &[u32], stay: u32) -> String {
    let wrong = words.iter().zip((0..THREADS).cycle()).filter(|&(&word, thread)| {
        let should = if thread < stay { expected(thread, stay) } else { u32::MAX };
        word != should
    });
    match wrong.count() {
        0 => "correct".to_owned(),
        count => format!("WRONG: {count} of {}", words.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_counts_wrong_words() {
        let good: Vec<u32> = (0..THREADS).map(|t| if t < 100 { expected(t, 100) } else { u32::MAX }).collect();
        assert_eq!(verdict(&good, 100), "correct");
        let mut bad = good;
        bad[99] += 1;
        bad[200] = 0;
        assert_eq!(verdict(&bad, 100), "WRONG: 2 of 256");
    }
}
