//! Futures: calls in the background, whose outputs later calls of the tenant can use as inputs.
//!
//! A future exists from the moment the request that begins it is handled. A call can name only
//! futures that exist, so futures cannot wait for each other in a cycle. Outputs are kept for a
//! limited time after the end of the call, and within a limit for each tenant.

mod requests;
#[cfg(test)]
mod tests;

use super::held::HeldFiles;
use super::refusal::{OrRefuse, bad_request};
use super::requests::{Answered, taken};
use crate::limits::{
    CONTROL_FILES_PER_USER_MAX, FUTURE_INPUTS_BYTES_MAX, FUTURE_LIFETIME, FUTURE_TRACE_LIFETIME, FUTURES_BYTES_MAX,
    FUTURES_MAX,
};
use crate::names::check_name;
use atoll_control::{
    Answer, Attachments, Call, DeferredCall, FutureOutput, FutureReport, FutureState, Input, Invoked, Output, Refusal,
    RefusalKind, Value,
};
use atoll_engine::Tenant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// The futures of all tenants.
#[derive(Default)]
pub(super) struct Futures(Mutex<BTreeMap<Tenant, Own>>);

/// The futures of a tenant.
#[derive(Default)]
struct Own {
    named: BTreeMap<String, Entry>,
    /// Number of calls that have not ended although their futures were forgotten. They count toward
    /// the limit, since they may hold inputs and wait for other futures.
    forgotten: usize,
    /// Files that came with calls that have not ended.
    files: usize,
    /// Bytes of outputs that are inputs of calls now.
    input_bytes: usize,
    /// The last futures that are gone, for messages about them.
    gone: VecDeque<Trace>,
}

/// Copies of outputs that are inputs of a call. They count until this is dropped.
struct InputRoom {
    futures: Arc<Futures>,
    tenant: Tenant,
    bytes: usize,
}

impl Drop for InputRoom {
    fn drop(&mut self) {
        if let Some(own) = self.futures.lock().get_mut(&self.tenant) {
            own.input_bytes -= self.bytes;
        }
    }
}

/// What is remembered of a future that is gone.
struct Trace {
    name: String,
    /// Whether its time had passed; otherwise a client dropped it.
    is_expired: bool,
    since: Instant,
}

/// What the call of a future runs.
struct Target {
    functions: Vec<String>,
    graph: Option<String>,
}

/// A future of a tenant.
struct Entry {
    /// Distinguishes it from an earlier one of the same name.
    number: u64,
    /// The bytes of its outputs.
    bytes: usize,
    target: Target,
    begun: Instant,
    /// When its call ended; `None` while it runs.
    finished: Option<Instant>,
    /// Cancels its call; `None` after that.
    cancel: Option<oneshot::Sender<()>>,
    ended: watch::Receiver<Option<Ended>>,
}

/// How a call ended.
type Ended = Arc<Result<Kept, Refusal>>;

/// The answer of a call, with the bytes of its outputs. The value of an output in the answer is
/// valid only if it is an object; the others are in `bytes`.
struct Kept {
    answer: Invoked,
    bytes: Vec<Option<Vec<u8>>>,
}

/// A future whose call has not ended. Dropping this before the call ends cancels the future.
struct Pending {
    futures: Arc<Futures>,
    tenant: Tenant,
    name: String,
    number: u64,
    /// Files that came with the call.
    files: usize,
    sender: watch::Sender<Option<Ended>>,
    is_running: bool,
    /// Receives something if a client cancels the call, and an error if it drops the future.
    cancelled: oneshot::Receiver<()>,
}

impl Own {
    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.forgotten == 0 && self.input_bytes == 0 && self.gone.is_empty()
    }

    fn note_gone(&mut self, name: &str, is_expired: bool) {
        if self.gone.len() >= FUTURES_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(Trace { name: name.into(), is_expired, since: Instant::now() });
    }
}

impl Entry {
    /// Describes the future.
    fn report(&self, name: &str) -> FutureReport {
        let ended = self.ended.borrow().clone();
        let output = |output: &Output| FutureOutput {
            stage: output.stage,
            name: output.name.clone(),
            form: output.form.clone(),
        };
        let (state, failure, outputs) = match ended.as_deref() {
            None => (FutureState::Running, None, Vec::new()),
            Some(Ok(kept)) => (FutureState::Done, None, kept.answer.outputs.iter().map(output).collect()),
            Some(Err(refusal)) => (FutureState::Failed, Some(refusal.clone()), Vec::new()),
        };
        let left = |at: Instant| millis(FUTURE_LIFETIME.saturating_sub(at.elapsed()));
        FutureReport {
            future: name.into(),
            functions: self.target.functions.clone(),
            graph: self.target.graph.clone(),
            state,
            failure,
            outputs,
            bytes: self.bytes as u64,
            age_ms: millis(self.begun.elapsed()),
            expires_in_ms: self.finished.map(left),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Target {
    fn of(call: &DeferredCall) -> Target {
        match call {
            DeferredCall::Invoke(invoke) => match &invoke.call {
                Call::Stages { stages, .. } => {
                    Target { functions: stages.iter().map(|stage| stage.function.clone()).collect(), graph: None }
                }
                Call::Again { .. } => Target { functions: Vec::new(), graph: None },
            },
            DeferredCall::InvokeGraph(call) => Target { functions: Vec::new(), graph: Some(call.graph.clone()) },
        }
    }
}

impl Futures {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, Own>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a future, with whose call `files` files came.
    fn begin(
        self: &Arc<Futures>,
        tenant: &Tenant,
        name: String,
        target: Target,
        files: usize,
    ) -> Result<Pending, Refusal> {
        check_name(&name).map_err(|error| bad_request(error.to_string()))?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (sender, ended) = watch::channel(None);
        let (cancel, cancelled) = oneshot::channel();
        let mut tenants = self.lock();
        tenants.retain(|_, own| {
            own.gone.retain(|trace| trace.since.elapsed() < FUTURE_TRACE_LIFETIME);
            !own.is_empty()
        });
        let own = tenants.entry(tenant.clone()).or_default();
        if own.named.contains_key(&name) {
            return Err(bad_request(format!("there is a future `{name}`; forget it first, or choose another name")));
        }
        if own.named.len() + own.forgotten >= FUTURES_MAX {
            let message = format!("tenant `{tenant}` has {FUTURES_MAX} futures; forget one that has ended first");
            return Err(Refusal { kind: RefusalKind::Quota, message });
        }
        if own.files + files > CONTROL_FILES_PER_USER_MAX {
            let message = format!(
                "the calls of the futures of tenant `{tenant}` have {} files; with {files} more the limit of \
                 {CONTROL_FILES_PER_USER_MAX} is exceeded",
                own.files
            );
            return Err(Refusal { kind: RefusalKind::Quota, message });
        }
        own.files += files;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (begun, cancel) = (Instant::now(), Some(cancel));
        own.named.insert(name.clone(), Entry { number, bytes: 0, target, begun, finished: None, cancel, ended });
        let (futures, tenant) = (self.clone(), tenant.clone());
        Ok(Pending { futures, tenant, name, number, files, sender, is_running: true, cancelled })
    }

    /// Counts copies of outputs that are inputs of a call.
    fn hold_inputs(self: &Arc<Futures>, tenant: &Tenant, bytes: usize) -> Result<InputRoom, Refusal> {
        let mut tenants = self.lock();
        let own = tenants.entry(tenant.clone()).or_default();
        if bytes > FUTURE_INPUTS_BYTES_MAX.saturating_sub(own.input_bytes) {
            let message = format!(
                "calls of tenant `{tenant}` have {} bytes of outputs of futures as inputs; with {bytes} more the \
                 limit of {FUTURE_INPUTS_BYTES_MAX} bytes is exceeded",
                own.input_bytes
            );
            return Err(Refusal { kind: RefusalKind::Quota, message });
        }
        own.input_bytes += bytes;
        Ok(InputRoom { futures: self.clone(), tenant: tenant.clone(), bytes })
    }

    /// Waits until the call of a future ends.
    async fn wait(&self, tenant: &Tenant, name: &str) -> Result<Ended, Refusal> {
        let found = self.lock().get(tenant).and_then(|own| Some(own.named.get(name)?.ended.clone()));
        let mut ended = found.ok_or_else(|| self.missing(tenant, name))?;
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // The sender sends before it is dropped.
        ended.ok_or_else(|| self.missing(tenant, name))
    }

    /// Descriptions of a tenant's futures, by name, or of one.
    fn reports(&self, tenant: &Tenant, only: Option<&str>) -> Result<Vec<FutureReport>, Refusal> {
        let tenants = self.lock();
        let named = tenants.get(tenant).map(|own| &own.named);
        let Some(name) = only else {
            let all = named.into_iter().flatten();
            return Ok(all.map(|(name, entry)| entry.report(name)).collect());
        };
        let found = named.and_then(|named| Some(vec![named.get(name)?.report(name)]));
        drop(tenants);
        found.ok_or_else(|| self.missing(tenant, name))
    }

    /// Cancels the call of a future, and waits for its end.
    async fn cancel(&self, tenant: &Tenant, name: &str) -> Result<(), Refusal> {
        {
            let mut tenants = self.lock();
            let entry = tenants.get_mut(tenant).and_then(|own| own.named.get_mut(name));
            if let Some(entry) = entry {
                if entry.finished.is_some() {
                    return Err(bad_request(format!("the call of future `{name}` has already ended")));
                }
                if let Some(cancel) = entry.cancel.take() {
                    // Fails if the call ends at this moment.
                    let _ = cancel.send(());
                }
            }
        }
        self.wait(tenant, name).await.map(drop)
    }

    /// The refusal for a name of which the tenant has no future. It is the same if another tenant
    /// has one.
    fn missing(&self, tenant: &Tenant, name: &str) -> Refusal {
        let tenants = self.lock();
        let trace = tenants.get(tenant).and_then(|own| own.gone.iter().rev().find(|trace| trace.name == name));
        let kept = FUTURE_LIFETIME.as_secs();
        let reason = match trace.map(|trace| (trace.is_expired, trace.since.elapsed().as_secs())) {
            Some((true, s)) => format!(" any more; its outputs were kept for {kept} s, until {s} s ago"),
            Some((false, s)) => format!(" any more; it was forgotten by request {s} s ago"),
            None => format!("; outputs are kept for {kept} s"),
        };
        let name: String = name.chars().take(128).flat_map(char::escape_debug).collect();
        Refusal { kind: RefusalKind::NotFound, message: format!("there is no future `{name}`{reason}") }
    }

    /// Forgets a future. A call that has not ended continues. Returns whether it existed.
    fn forget(&self, tenant: &Tenant, name: &str, number: Option<u64>) -> bool {
        let mut tenants = self.lock();
        let Some(own) = tenants.get_mut(tenant) else { return false };
        let is_it = own.named.get(name).is_some_and(|entry| number.is_none_or(|number| entry.number == number));
        if is_it {
            own.note_gone(name, number.is_some());
            own.forgotten += usize::from(own.named.remove(name).is_some_and(|entry| entry.finished.is_none()));
        }
        is_it
    }

    /// Notes that the call of a future has ended.
    fn note_end(&self, tenant: &Tenant, name: &str, number: u64, files: usize) {
        let mut tenants = self.lock();
        let Some(own) = tenants.get_mut(tenant) else { return };
        own.files -= files;
        match own.named.get_mut(name).filter(|entry| entry.number == number) {
            Some(entry) => entry.finished = Some(Instant::now()),
            None => own.forgotten -= 1,
        }
        if own.is_empty() {
            tenants.remove(tenant);
        }
    }
}

impl Pending {
    /// Keeps the outputs of the call for [`FUTURE_LIFETIME`].
    fn end(mut self, result: Result<Kept, Refusal>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<Kept, Refusal>) {
        self.note_end();
        let result = result.and_then(|kept| self.admit(kept));
        self.sender.send_replace(Some(Arc::new(result)));
        let (futures, tenant) = (self.futures.clone(), self.tenant.clone());
        let (name, number) = (self.name.clone(), self.number);
        // Without a runtime the daemon is stopping.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(FUTURE_LIFETIME).await;
            futures.forget(&tenant, &name, Some(number));
        });
    }

    fn note_end(&mut self) {
        if std::mem::take(&mut self.is_running) {
            self.futures.note_end(&self.tenant, &self.name, self.number, self.files);
        }
    }

    /// Counts the bytes of outputs for the tenant.
    fn admit(&self, kept: Kept) -> Result<Kept, Refusal> {
        let bytes = kept.bytes.iter().flatten().map(Vec::len).sum::<usize>();
        let mut tenants = self.futures.lock();
        // If the tenant has no futures any more, this one was forgotten, and its outputs are
        // dropped soon.
        let Some(own) = tenants.get_mut(&self.tenant) else { return Ok(kept) };
        let all = own.named.values().map(|entry| entry.bytes).sum::<usize>();
        if bytes > FUTURES_BYTES_MAX.saturating_sub(all) {
            let message = format!(
                "the outputs of future `{}` have {bytes} bytes; with those of other futures the limit of \
                 {FUTURES_BYTES_MAX} bytes is exceeded",
                self.name
            );
            return Err(Refusal { kind: RefusalKind::Quota, message });
        }
        if let Some(entry) = own.named.get_mut(&self.name).filter(|entry| entry.number == self.number) {
            entry.bytes = bytes;
        }
        Ok(kept)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let is_open = self.sender.borrow().is_none();
        if is_open {
            self.finish(Err(cancelled()));
        }
    }
}

/// The end of a call that a client cancelled, or that the daemon dropped.
fn cancelled() -> Refusal {
    Refusal { kind: RefusalKind::Function, message: "the call of the future was cancelled".into() }
}

impl Kept {
    fn of(answered: (Answer, Attachments)) -> Result<Kept, Refusal> {
        let (Answer::Invoked(answer), mut attachments) = answered else {
            return Err(bad_request("the call has no outputs"));
        };
        let bytes = |output: &Output| -> Result<Option<Vec<u8>>, Refusal> {
            match output.value {
                Value::Object(_) => Ok(None),
                Value::Blob(blob) => taken(&mut attachments, blob)?.into_vec().or_refuse().map(Some),
            }
        };
        let bytes = answer.outputs.iter().map(bytes).collect::<Result<_, Refusal>>()?;
        Ok(Kept { answer, bytes })
    }

    /// The answer, as if the call had just ended.
    fn answer(&self, held: &HeldFiles, tenant: &Tenant) -> Answered {
        let mut attachments = Attachments::default();
        let mut answer = self.answer.clone();
        for (output, bytes) in answer.outputs.iter_mut().zip(&self.bytes) {
            if let Some(bytes) = bytes {
                output.value = Value::Blob(held.attach(tenant, &mut attachments, bytes)?);
            }
        }
        // A plan belongs to a connection, and this answer may go to another one.
        answer.plan = None;
        Ok((Answer::Invoked(answer), attachments))
    }

    /// An output, with its bytes unless it is an object. If several functions have an output of
    /// this name, the last function's.
    fn output(&self, future: &str, name: &str) -> Result<(&Output, Option<&Vec<u8>>), Refusal> {
        let found = self.answer.outputs.iter().zip(&self.bytes).rev().find(|(output, _)| output.name == name);
        found.map(|(output, bytes)| (output, bytes.as_ref())).ok_or_else(|| {
            let known: Vec<&str> = self.answer.outputs.iter().map(|output| output.name.as_str()).collect();
            bad_request(format!("future `{future}` has no output `{name}`; it has {}", known.join(", ")))
        })
    }

    /// An output as an input of another call.
    fn input(&self, future: &str, name: &str, attachments: &mut Attachments) -> Result<Input, Refusal> {
        let (output, bytes) = self.output(future, name)?;
        let form = output.form.clone();
        Ok(match &output.value {
            Value::Object(digest) => Input::Object { digest: *digest, form: Some(form) },
            Value::Blob(_) => {
                let bytes = bytes.map(Vec::as_slice).unwrap_or_default();
                Input::Bytes { form, blob: attachments.add(bytes).or_refuse()? }
            }
        })
    }
}
