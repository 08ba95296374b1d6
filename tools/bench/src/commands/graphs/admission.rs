//! Requests with a deadline in an open loop: which are admitted, and which of them are late.

use super::vision::GRAPH;
use crate::samples::Distribution;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_client::{Client, ClientError, GraphCall, RefusalKind};
use atoll_protocol::Tensor;
use atoll_sim::cluster::arrivals::{Process, generate};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections; a request waits for one only if all of them wait for answers.
const CONNECTIONS: usize = 64;
/// Time between the start and the first arrival.
const LEAD: Duration = Duration::from_millis(20);

/// What became of the requests.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// Times to the answers, from when the requests were due.
    answered: Vec<Duration>,
    /// Answers that came after the deadline, and admitted requests that the deadline ended.
    late: usize,
    /// Requests that the admission refused, with the time from request to refusal.
    refused: Vec<Duration>,
    /// Requests that ended after their deadline without an answer; included in `late`.
    ended: usize,
}

/// Sends requests to the graph as a Poisson process.
pub(super) fn open_loop(
    socket: &Path,
    images: &[Tensor],
    rate_per_s: f64,
    seconds: f64,
    seed: u64,
    deadline: Duration,
) -> Result<Admitted> {
    let arrivals = generate(&[Process::Poisson(rate_per_s)], seconds, seed);
    ensure!(!arrivals.is_empty(), "no request arrives in {seconds} s; use a longer --seconds");
    let calls: Vec<GraphCall> = images
        .iter()
        .map(|image| {
            let tensor = atoll_client::Tensor {
                datatype: image.datatype,
                shape: image.shape.clone(),
                bytes: image.bytes.clone(),
            };
            GraphCall::of(GRAPH).input("input", tensor).deadline(deadline)
        })
        .collect();
    let clients = (0..CONNECTIONS).map(|_| Client::connect(socket)).collect::<Result<Vec<_>, _>>()?;
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Admitted::default()));
    let begin = Instant::now() + LEAD;
    let serve = |mut client: Client| -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(arrival) = arrivals.get(at) else { return Ok(()) };
            let due = begin + Duration::from_nanos(arrival.at_ns);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            let answer = client.invoke_graph(&calls[at % calls.len()]);
            let took = sent.elapsed();
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(_) => {
                    all.answered.push(due.elapsed());
                    all.late += usize::from(took > deadline);
                }
                Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::Deadline => {
                    all.late += 1;
                    all.ended += 1;
                }
                Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::Busy => all.refused.push(took),
                Err(error) => return Err(error).context("a request failed"),
            }
        }
    };
    let serve = &serve;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || serve(client))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Admitted {
    fn admitted(&self) -> usize {
        self.answered.len() + self.ended
    }

    /// Part of the admitted requests that missed their deadline.
    fn miss_ratio(&self) -> f64 {
        self.late as f64 / self.admitted().max(1) as f64
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "requests": self.admitted() + self.refused.len(),
            "admitted": self.admitted(),
            "refused": self.refused.len(),
            "late": self.late,
            "miss_ratio": self.miss_ratio(),
            "answer": Distribution::of(&self.answered),
            "refusal": Distribution::of(&self.refused),
        })
    }

    pub(super) fn text(&self) -> String {
        let (answer, refusal) = (Distribution::of(&self.answered), Distribution::of(&self.refused));
        format!(
            "{} admitted, {} of them late ({:.2} %); answered in {:.3} ms on average, p99 {:.3} ms\n{} refused, after \
             {:.3} ms on average, p99 {:.3} ms\n",
            self.admitted(),
            self.late,
            self.miss_ratio() * 100.0,
            answer.mean_ms,
            answer.p99_ms,
            self.refused.len(),
            refusal.mean_ms,
            refusal.p99_ms
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_a_deadline_ended_are_admitted_and_late() {
        let ms = Duration::from_millis;
        let admitted = Admitted { answered: vec![ms(2), ms(4), ms(9)], late: 2, refused: vec![ms(1)], ended: 1 };
        assert_eq!(admitted.admitted(), 4);
        assert_eq!(admitted.miss_ratio(), 0.5);
        assert_eq!(admitted.as_json()["requests"], 5);
    }
}
