//! The loop of a stage process.

use crate::program::Prepared;
use crate::wire::{Answer, Part, REASON_CHARS_MAX, Request, read_file, read_head, read_tensors, write};
use std::collections::BTreeMap;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Result, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The first message of the process: the parts of the jail that this machine does not support, or
/// why there is no jail.
pub type Ready = std::result::Result<Vec<String>, String>;

/// Serves requests until the daemon closes its pipe. To be called in the jail. If there is no jail,
/// sends the reason and returns.
///
/// # Errors
/// A pipe fails, or the daemon sends what is not a request.
pub fn serve(ready: Ready, from: impl Read, to: impl Write) -> Result<()> {
    let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
    match ready {
        Ok(lacks) => write(&mut to, &Answer::Ready { lacks }, &[])?,
        Err(reason) => return write(&mut to, &Answer::Failed(reason), &[]),
    }
    let mut programs = BTreeMap::new();
    loop {
        let request = match read_head(&mut from) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        match request {
            Request::Prepare { id, program, file_bytes } => {
                let file = read_file(&mut from, file_bytes)?;
                let prepared = guarded(|| Prepared::new(program, &file));
                let answer = match prepared {
                    Ok(program) => {
                        programs.insert(id, program);
                        Answer::Done
                    }
                    Err(reason) => failed(&reason),
                };
                write(&mut to, &answer, &[])?;
            }
            Request::Drop { id } => {
                programs.remove(&id);
                write(&mut to, &Answer::Done, &[])?;
            }
            Request::Run { id, inputs } => {
                let inputs = read_tensors(&mut from, inputs)?;
                let run = || programs.get(&id).ok_or("internal error: it was not prepared")?.run(&inputs);
                match guarded(run) {
                    Ok(outputs) => {
                        let bytes: Vec<&[u8]> = outputs.iter().map(|output| &output.bytes[..]).collect();
                        write(&mut to, &Answer::Outputs(outputs.iter().map(Part::of).collect()), &bytes)?;
                    }
                    Err(reason) => write(&mut to, &failed(&reason), &[])?,
                }
            }
        }
    }
}

/// Turns a panic into an error. The programs are not changed by a call, so they can be used again.
fn guarded<T>(work: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    let panicked = |_| Err("internal error: the stage panicked; please report this bug".into());
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

fn failed(reason: &str) -> Answer {
    Answer::Failed(reason.chars().take(REASON_CHARS_MAX).collect())
}
