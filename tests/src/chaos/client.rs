//! A client process: it makes the requested number of requests and reports the outcome of each.
//!
//! Every request has unique inputs, so that the answer to another request, or a repeated answer, is
//! a wrong answer.

use super::grind::{bytes, grind, table};
use super::{Line, Orders, Outcome, Request, Role};
use crate::http;
use atoll_client::{Call, Class, Client, ClientError, DataType, Deploy, Digest, RefusalKind, Tensor};
use atoll_core::rng::Rng;
use atoll_hostile_executor::Layout;
use std::io::{self, BufRead as _, Write as _};
use std::time::{Duration, Instant};

/// Interval between requests of a steady client.
const PERIOD: Duration = Duration::from_millis(10);

/// Number of objects from which on a client removes one.
const KEPT_MAX: usize = 4;

/// Pause after a failed request, since what is missing will not be available immediately.
const PAUSE: Duration = Duration::from_millis(10);

/// Name of the function that a deployer deploys and removes.
const EXTRA: &str = "extra";

/// Number of modes of `faulty.ptx`; the last one never ends.
const FAULTS: u64 = 5;

/// A client process.
pub struct Process {
    pub(super) orders: Orders,
    pub(super) rng: Rng,
    table: Vec<u32>,
    pub(super) requests: u64,
    client: Option<Client>,
    kept: Vec<Digest>,
    has_extra: bool,
    /// Where an attack finds what its executor shares with the daemon.
    pub(super) layout: Option<Layout>,
}

/// Why a request failed.
pub(super) enum Failure {
    Client(ClientError),
    Http(io::Error),
    Status(u16, String),
    Wrong(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Client(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Http(error)
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Outcome {
        match failure {
            Failure::Client(ClientError::Refused(refusal)) => Outcome::Refused(refusal.kind, refusal.message),
            Failure::Client(error @ (ClientError::Unreachable { .. } | ClientError::Closed | ClientError::Wire(_))) => {
                Outcome::Lost(error.to_string())
            }
            Failure::Client(error) => Outcome::Wrong(error.to_string()),
            Failure::Http(error) => Outcome::Lost(error.to_string()),
            Failure::Status(status, body) => Outcome::Refused(kind_of(status, &body), format!("{status}: {body}")),
            Failure::Wrong(what) => Outcome::Wrong(what),
        }
    }
}

/// The refusal kind for an HTTP status.
fn kind_of(status: u16, body: &str) -> RefusalKind {
    match status {
        500 => RefusalKind::Function,
        503 if body.contains("unavailable for now") => RefusalKind::Function,
        503 => RefusalKind::Busy,
        504 => RefusalKind::Deadline,
        404 => RefusalKind::NotFound,
        _ => RefusalKind::BadRequest,
    }
}

impl Process {
    /// A client that has made no request yet.
    pub fn new(orders: Orders) -> Process {
        let (rng, table) = (Rng::new(orders.seed), table(orders.table));
        Process { orders, rng, table, requests: 0, client: None, kept: Vec::new(), has_extra: false, layout: None }
    }

    /// Makes as many requests as each line of standard input says, until it closes.
    pub fn run(mut self) -> io::Result<()> {
        for line in io::stdin().lock().lines() {
            let count: u32 = line?.trim().parse().map_err(io::Error::other)?;
            for _ in 0..count {
                self.make_request()?;
            }
            if std::mem::take(&mut self.has_extra) {
                self.ask(Request::Remove(EXTRA.into()), |this| Ok(this.client()?.remove_function(EXTRA)?))?;
            }
            // Between turns, the daemon keeps only objects of this client.
            self.client = None;
            say(&Line::Done)?;
        }
        Ok(())
    }

    fn make_request(&mut self) -> io::Result<()> {
        match self.orders.role {
            Role::Steady => {
                let begin = Instant::now();
                self.compute(1, 256, 20_000, Some(Class::RealTime), None)?;
                std::thread::sleep(PERIOD.saturating_sub(begin.elapsed()));
                Ok(())
            }
            Role::Web => self.ask_the_web(),
            Role::Faulty => self.go_wrong(),
            Role::Wild => self.store_anywhere(),
            Role::Hostile => self.attack(),
            Role::Deployer if self.rng.one_in(8) => self.come_and_go(),
            Role::Deployer | Role::Busy => match self.rng.below(10) {
                0 => self.put(),
                1 => self.look_or_drop(),
                2 => self.chain_and_keep(),
                3..6 => self.compute(1, 128, 1_000, None, None),
                6..8 => {
                    let times = 50_000 + self.rng.below(200_000) as u32;
                    self.compute(1, 512, times, None, None)
                }
                8 => self.compute(3, 256, 100_000, None, None),
                _ => {
                    let times = 1_000_000 + self.rng.below(1_000_000) as u32;
                    self.compute(1, 512, times, None, None)
                }
            },
        }
    }

    /// Reports the request, makes it, and reports its outcome.
    pub(super) fn ask(
        &mut self,
        request: Request,
        ask: impl FnOnce(&mut Process) -> Result<(), Failure>,
    ) -> io::Result<bool> {
        self.requests += 1;
        let number = self.requests;
        say(&Line::Asks(number, request))?;
        let begin = Instant::now();
        let outcome = ask(self).map_or_else(Outcome::from, |()| Outcome::Right);
        let (is_right, is_lost) = (outcome == Outcome::Right, matches!(outcome, Outcome::Lost(_)));
        say(&Line::Ended(number, outcome, begin.elapsed().as_micros() as u64))?;
        if is_lost {
            self.client = None;
        }
        if !is_right {
            std::thread::sleep(PAUSE);
        }
        Ok(is_right)
    }

    pub(super) fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.is_none() {
            let tenant = self.orders.tenant.parse().map_err(|_| Failure::Wrong("the tenant's name".into()))?;
            self.client = Some(Client::connect_as(&self.orders.socket, Some(tenant))?);
        }
        Ok(self.client.as_mut().expect("just connected"))
    }

    /// The daemon's address for a protocol.
    pub(super) fn address(&self, protocol: &str) -> io::Result<String> {
        let addresses = std::fs::read_to_string(&self.orders.addresses)?;
        let address = addresses.lines().find_map(|line| line.strip_prefix(protocol)?.strip_prefix(' '));
        address.map(|address| address.trim().to_owned()).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Numbers that are unique to this request.
    fn numbers(&mut self, count: usize) -> Vec<u32> {
        let mut numbers = vec![self.orders.salt, self.requests as u32];
        numbers.extend((2..count).map(|_| self.rng.next_u64() as u32));
        numbers
    }

    /// Calls `grind` several times, each on the previous result.
    fn compute(
        &mut self,
        functions: u32,
        count: usize,
        times: u32,
        class: Option<Class>,
        keep: Option<()>,
    ) -> io::Result<()> {
        let x = self.numbers(count);
        let expected = (0..functions).fold(x.clone(), |x, _| grind(&x, &self.table, times));
        let expected = Tensor { datatype: DataType::Uint32, shape: vec![count as i64], bytes: bytes(&expected) };
        let digest = keep.map(|()| Digest::of(&expected.bytes));
        let kept = self.ask(Request::Run { functions, keep: digest }, |this| {
            let mut call = Call::of("grind").input("x", vector(&x)).input("times", vector(&[times]));
            for _ in 1..functions {
                call = call.then("grind").take("x", "y").input("times", vector(&[times]));
            }
            call = if let Some(class) = class { call.class(class) } else { call };
            call = if digest.is_some() { call.keep("y") } else { call };
            let answer = this.client()?.invoke(call)?;
            match digest {
                Some(digest) if answer.object("y")? != digest => Err(Failure::Wrong("another object".into())),
                None if answer.tensor("y")? != &expected => {
                    Err(Failure::Wrong(difference(answer.tensor("y")?, &expected)))
                }
                _ => Ok(()),
            }
        })?;
        self.kept.extend(digest.filter(|_| kept));
        Ok(())
    }

    fn chain_and_keep(&mut self) -> io::Result<()> {
        self.compute(2, 2048, 10_000, None, Some(()))
    }

    fn put(&mut self) -> io::Result<()> {
        let length = 16 + self.rng.below(30_000) as usize;
        let tensor = vector(&self.numbers(length));
        let digest = Digest::of(&tensor.bytes);
        let is_kept = self.ask(Request::Put(digest), |this| match this.client()?.put(&tensor, None)? {
            found if found == digest => Ok(()),
            found => Err(Failure::Wrong(format!("it was kept as {found}"))),
        })?;
        self.kept.extend(Some(digest).filter(|_| is_kept));
        Ok(())
    }

    fn look_or_drop(&mut self) -> io::Result<()> {
        if self.kept.is_empty() {
            return self.put();
        }
        let index = self.rng.below(self.kept.len() as u64) as usize;
        if self.kept.len() >= KEPT_MAX {
            let digest = self.kept.swap_remove(index);
            return self.ask(Request::Drop(digest), |this| Ok(this.client()?.remove_object(digest)?)).map(drop);
        }
        let digest = self.kept[index];
        let look = |this: &mut Process| match Digest::of(&this.client()?.get(digest)?.bytes) {
            found if found == digest => Ok(()),
            found => Err(Failure::Wrong(format!("object {digest} holds what {found} should"))),
        };
        self.ask(Request::Get(digest), look).map(drop)
    }

    fn come_and_go(&mut self) -> io::Result<()> {
        let is_done = if self.has_extra {
            self.ask(Request::Remove(EXTRA.into()), |this| Ok(this.client()?.remove_function(EXTRA)?))?
        } else {
            let how = Deploy { name: Some(EXTRA.into()), ..Deploy::default() };
            self.ask(Request::Deploy(EXTRA.into()), |this| {
                let bundle = this.orders.bundle.clone();
                Ok(this.client()?.deploy(&bundle, &how).map(drop)?)
            })?
        };
        self.has_extra ^= is_done;
        Ok(())
    }

    fn go_wrong(&mut self) -> io::Result<()> {
        let mode = self.rng.below(FAULTS + 1) as u32;
        let deadline = Duration::from_millis(20 + self.rng.below(100));
        let call = Call::of("faulty").input("mode", vector(&[mode]));
        let is_hurried = u64::from(mode) == FAULTS && !self.rng.one_in(8);
        let call = if is_hurried { call.deadline(deadline) } else { call };
        self.ask(Request::Run { functions: 1, keep: None }, |this| {
            let answer = this.client()?.invoke(call)?;
            let expected = bytes(&(1..=64).collect::<Vec<u32>>());
            if mode == 0 && answer.tensor("out")?.bytes == expected {
                return Ok(());
            }
            Err(Failure::Wrong(format!("mode {mode} gave {:?}", answer.tensor("out")?.bytes)))
        })
        .map(drop)
    }

    fn store_anywhere(&mut self) -> io::Result<()> {
        let bits = [4, 12, 20, 32, 44, 46, 47][self.rng.below(7) as usize];
        let distance = self.rng.next_u64() & ((1 << bits) - 1) & !3;
        let distance = if self.rng.one_in(2) { distance } else { distance.wrapping_neg() };
        let place = Tensor { datatype: DataType::Uint64, shape: vec![1], bytes: distance.to_le_bytes().into() };
        let call = Call::of("wild").input("where", place).deadline(Duration::from_secs(5));
        self.ask(Request::Run { functions: 1, keep: None }, |this| Ok(this.client()?.invoke(call).map(drop)?)).map(drop)
    }

    fn ask_the_web(&mut self) -> io::Result<()> {
        if self.rng.one_in(2) && !self.orders.examples.is_empty() {
            let index = self.rng.below(self.orders.examples.len() as u64) as usize;
            let (inputs, outputs) = self.orders.examples[index].clone();
            return self.infer("model", &inputs, &outputs);
        }
        let (x, times) = (self.numbers(64), self.rng.below(100_000) as u32);
        let inputs = format!(
            r#"[{{"name":"x","shape":[64],"datatype":"UINT32","data":{x:?}}},
                {{"name":"times","shape":[1],"datatype":"UINT32","data":[{times}]}}]"#
        );
        let outputs = serde_json::json!([{
            "name": "y", "datatype": "UINT32", "shape": [64], "data": grind(&x, &self.table, times),
        }]);
        self.infer("grind", &inputs, &outputs.to_string())
    }

    fn infer(&mut self, model: &str, inputs: &str, outputs: &str) -> io::Result<()> {
        self.ask(Request::Run { functions: 1, keep: None }, |this| {
            let (status, body) = infer(&this.address("http")?, model, inputs)?;
            if status != 200 {
                return Err(Failure::Status(status, body));
            }
            let found = outputs_of(&body).unwrap_or_default();
            let is_same = serde_json::from_str::<serde_json::Value>(outputs).is_ok_and(|expected| found == expected);
            if is_same { Ok(()) } else { Err(Failure::Wrong(format!("`{model}` gave {body:.200}"))) }
        })
        .map(drop)
    }
}

/// Calls a model over HTTP.
pub fn infer(address: &str, model: &str, inputs: &str) -> io::Result<(u16, String)> {
    http::ask(address, "POST", &format!("/v2/models/{model}/infer"), &format!(r#"{{"inputs":{inputs}}}"#))
}

/// The outputs in the body of an answer.
pub fn outputs_of(body: &str) -> Option<serde_json::Value> {
    serde_json::from_str::<serde_json::Value>(body).ok()?.get("outputs").cloned()
}

fn vector(values: &[u32]) -> Tensor {
    Tensor { datatype: DataType::Uint32, shape: vec![values.len() as i64], bytes: bytes(values) }
}

fn difference(found: &Tensor, expected: &Tensor) -> String {
    let at = found.bytes.iter().zip(&expected.bytes).position(|(found, expected)| found != expected);
    format!("shape {:?} of {:?}, the first difference at byte {at:?}", found.shape, expected.shape)
}

/// Prints a whole line, so that the reader never sees a part of one unless this process is killed.
fn say(line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
    text.push('\n');
    io::stdout().lock().write_all(text.as_bytes())
}
