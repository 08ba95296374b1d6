//! The runs of a recording: the session as a whole, or the part that it repeats.

use crate::recording::steps::{Action, Step, Steps};

/// How often a part must occur in a recording to count as a repetition. Two alike parts may belong
/// together; of three, two are compared and the third verifies.
const REPEATS_MIN: usize = 3;

/// The work from which a program has its results.
#[derive(Clone, Debug)]
pub struct Run<'s, 'a> {
    /// Its steps. In a repetition they begin with what came before the first one.
    pub steps: Vec<&'s Step<'a>>,
    /// The size in bytes of each allocation of the session.
    pub buffers: &'s [u64],
}

impl<'s, 'a> Run<'s, 'a> {
    /// The session as one run.
    pub fn whole(session: &'s Steps<'a>) -> Run<'s, 'a> {
        Run { steps: session.steps.iter().collect(), buffers: &session.buffers }
    }

    /// The runs of a session. If its work ends with a part that occurs three times or more, each of
    /// them is a run, with the work before the first in front, such as copies of weights. What that
    /// work copies to the host is left out. Otherwise the session is one run.
    pub fn all(session: &'s Steps<'a>) -> Vec<Run<'s, 'a>> {
        let Some((start, length, count)) = repetition(&session.steps) else { return vec![Run::whole(session)] };
        let (before, rest) = session.steps.split_at(start);
        let before: Vec<&Step<'a>> = before.iter().filter(|step| !is_download(step)).collect();
        let run = |part: &'s [Step<'a>]| Run {
            steps: before.iter().copied().chain(part).collect(),
            buffers: &session.buffers,
        };
        rest.chunks_exact(length).take(count).map(run).collect()
    }
}

/// The shortest part with which the work ends, and which occurs often enough: the start of the first
/// one, the number of steps, and how often it occurs. A part copies data to the device, since all
/// parts without an input are the same run, and it ends with copies to the host.
fn repetition(steps: &[Step<'_>]) -> Option<(usize, usize, usize)> {
    let end = steps.iter().rposition(is_download)? + 1;
    let is_end = |at: &usize| is_download(&steps[at - 1]) && !is_download(&steps[*at]);
    (1..end).rev().filter(is_end).find_map(|at| {
        let length = end - at;
        let last = &steps[at..end];
        if !last.iter().any(is_upload) {
            return None;
        }
        let alike = steps[..at].rchunks_exact(length).take_while(|part| part.iter().zip(last).all(are_alike));
        let count = 1 + alike.count();
        (count >= REPEATS_MIN).then_some((end - count * length, length, count))
    })
}

fn is_upload(step: &Step<'_>) -> bool {
    matches!(step.action, Action::Upload { .. })
}

fn is_download(step: &Step<'_>) -> bool {
    matches!(step.action, Action::Download { .. })
}

/// Whether two steps do the same kind of work in the same sizes. Memory and data are not compared.
fn are_alike((one, other): (&Step<'_>, &Step<'_>)) -> bool {
    match (&one.action, &other.action) {
        (Action::Upload { bytes: one, .. }, Action::Upload { bytes: other, .. }) => one.len() == other.len(),
        (Action::Download { bytes: one, .. }, Action::Download { bytes: other, .. }) => one.len() == other.len(),
        (Action::Copy { bytes: one, .. }, Action::Copy { bytes: other, .. }) => one == other,
        (Action::Fill { rows: one, .. }, Action::Fill { rows: other, .. }) => one == other,
        (
            Action::Launch { kernel: one, grid, block, shared_bytes, .. },
            Action::Launch { kernel: other, grid: grid2, block: block2, shared_bytes: shared2, .. },
        ) => one == other && grid == grid2 && block == block2 && shared_bytes == shared2,
        _ => false,
    }
}
