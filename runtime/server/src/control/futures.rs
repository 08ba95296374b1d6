//! Futures: calls in the background, whose outputs later calls of the tenant can use as inputs.
//!
//! A future exists from the moment the request that begins it is handled. A call can name only
//! futures that exist, so futures cannot wait for each other in a cycle. Outputs are kept for a
//! limited time after the end of the call, and within a limit for each tenant.

use super::Control;
use super::invoke::Plans;
use super::refusal::{OrRefuse, bad_request};
use super::requests::{Answered, plain, taken};
use super::session::Session;
use crate::identity::Principal;
use crate::limits::{FUTURE_LIFETIME, FUTURES_BYTES_MAX, FUTURES_MAX};
use crate::names::check_name;
use atoll_control::{
    Answer, Attachments, Call, DeferredCall, Input, Invoke, InvokeGraph, Invoked, Output, Refusal, RefusalKind, Value,
};
use atoll_engine::Tenant;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

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
}

/// A future of a tenant.
struct Entry {
    /// Distinguishes it from an earlier one of the same name.
    number: u64,
    /// The bytes of its outputs.
    bytes: usize,
    is_running: bool,
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
    sender: watch::Sender<Option<Ended>>,
    is_running: bool,
}

impl Futures {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, Own>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a future.
    fn begin(self: &Arc<Futures>, tenant: &Tenant, name: String) -> Result<Pending, Refusal> {
        check_name(&name).map_err(|error| bad_request(error.to_string()))?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (sender, ended) = watch::channel(None);
        let mut tenants = self.lock();
        let own = tenants.entry(tenant.clone()).or_default();
        if own.named.contains_key(&name) {
            return Err(bad_request(format!("there is a future `{name}`; forget it first, or choose another name")));
        }
        if own.named.len() + own.forgotten >= FUTURES_MAX {
            let message = format!("tenant `{tenant}` has {FUTURES_MAX} futures; forget one that has ended first");
            return Err(Refusal { kind: RefusalKind::Quota, message });
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        own.named.insert(name.clone(), Entry { number, bytes: 0, is_running: true, ended });
        Ok(Pending { futures: self.clone(), tenant: tenant.clone(), name, number, sender, is_running: true })
    }

    /// Waits until the call of a future ends.
    async fn wait(&self, tenant: &Tenant, name: &str) -> Result<Ended, Refusal> {
        let found = self.lock().get(tenant).and_then(|own| Some(own.named.get(name)?.ended.clone()));
        let mut ended = found.ok_or_else(|| no_future(name))?;
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // `Pending` sends a result before it drops the sender.
        ended.ok_or_else(|| no_future(name))
    }

    /// Forgets a future. A call that has not ended continues. Returns whether it existed.
    fn forget(&self, tenant: &Tenant, name: &str, number: Option<u64>) -> bool {
        let mut tenants = self.lock();
        let Some(own) = tenants.get_mut(tenant) else { return false };
        let is_it = own.named.get(name).is_some_and(|entry| number.is_none_or(|number| entry.number == number));
        if is_it && own.named.remove(name).is_some_and(|entry| entry.is_running) {
            own.forgotten += 1;
        }
        if own.named.is_empty() && own.forgotten == 0 {
            tenants.remove(tenant);
        }
        is_it
    }

    /// Notes that the call of a future has ended.
    fn note_end(&self, tenant: &Tenant, name: &str, number: u64) {
        let mut tenants = self.lock();
        let Some(own) = tenants.get_mut(tenant) else { return };
        match own.named.get_mut(name).filter(|entry| entry.number == number) {
            Some(entry) => entry.is_running = false,
            None => own.forgotten -= 1,
        }
        if own.named.is_empty() && own.forgotten == 0 {
            tenants.remove(tenant);
        }
    }
}

impl Pending {
    /// Keeps the outputs of the call for [`FUTURE_LIFETIME`].
    fn end(mut self, result: Result<Kept, Refusal>) {
        self.note_end();
        let result = result.and_then(|kept| self.admit(kept));
        self.sender.send_replace(Some(Arc::new(result)));
        let (futures, tenant) = (self.futures.clone(), self.tenant.clone());
        let (name, number) = (self.name.clone(), self.number);
        tokio::spawn(async move {
            tokio::time::sleep(FUTURE_LIFETIME).await;
            futures.forget(&tenant, &name, Some(number));
        });
    }

    fn note_end(&mut self) {
        if std::mem::take(&mut self.is_running) {
            self.futures.note_end(&self.tenant, &self.name, self.number);
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
        self.note_end();
        let cancelled =
            || Refusal { kind: RefusalKind::Function, message: "the call of the future was cancelled".into() };
        let is_open = self.sender.borrow().is_none();
        if is_open {
            self.sender.send_replace(Some(Arc::new(Err(cancelled()))));
        }
    }
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
    fn answer(&self) -> Answered {
        let mut attachments = Attachments::default();
        let mut answer = self.answer.clone();
        for (output, bytes) in answer.outputs.iter_mut().zip(&self.bytes) {
            if let Some(bytes) = bytes {
                output.value = Value::Blob(attachments.add(bytes).or_refuse()?);
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

fn no_future(name: &str) -> Refusal {
    let name: String = name.chars().take(128).flat_map(char::escape_debug).collect();
    let message =
        format!("there is no future `{name}`; outputs of futures are kept for {} s", FUTURE_LIFETIME.as_secs());
    Refusal { kind: RefusalKind::NotFound, message }
}

impl Control {
    /// Begins a future, and runs its call in the background.
    pub(super) fn defer(
        self: &Arc<Control>,
        principal: &Principal,
        future: String,
        call: DeferredCall,
        attachments: Attachments,
    ) -> Answered {
        let pending = self.futures.begin(&principal.tenant, future)?;
        let (control, principal) = (self.clone(), principal.clone());
        tokio::spawn(async move {
            let mut session = Session { principal, plans: Plans::default(), announced: HashSet::new(), ring: None };
            let answered = match call {
                DeferredCall::Invoke(invoke) => control.invoke_after(&mut session, invoke, attachments).await,
                DeferredCall::InvokeGraph(call) => {
                    control.invoke_graph_after(&session.principal, call, attachments).await
                }
            };
            pending.end(answered.and_then(Kept::of));
        });
        plain(Answer::Done)
    }

    /// Waits for a future, and sends its outputs.
    pub(super) async fn await_future(&self, principal: &Principal, future: &str) -> Answered {
        match &*self.futures.wait(&principal.tenant, future).await? {
            Ok(kept) => kept.answer(),
            Err(refusal) => Err(refusal.clone()),
        }
    }

    pub(super) fn forget_future(&self, principal: &Principal, future: &str) -> Answered {
        match self.futures.forget(&principal.tenant, future, None) {
            true => plain(Answer::Done),
            false => Err(no_future(future)),
        }
    }

    /// Calls functions once the futures that the call names have ended.
    pub(super) async fn invoke_after(
        &self,
        session: &mut Session,
        mut invoke: Invoke,
        mut attachments: Attachments,
    ) -> Answered {
        let inputs: Vec<&mut Input> = match &mut invoke.call {
            Call::Stages { stages, .. } => stages.iter_mut().flat_map(|stage| stage.inputs.values_mut()).collect(),
            Call::Again { rename, .. } => rename.iter_mut().map(|rename| &mut rename.to).collect(),
        };
        let tenant = session.principal.tenant.clone();
        self.resolve(&tenant, inputs, &mut invoke.deadline_us, &mut attachments).await?;
        self.invoke(session, invoke, attachments).await
    }

    /// Calls a graph once the futures that the call names have ended.
    pub(super) async fn invoke_graph_after(
        &self,
        principal: &Principal,
        mut call: InvokeGraph,
        mut attachments: Attachments,
    ) -> Answered {
        let inputs = call.inputs.values_mut().collect();
        self.resolve(&principal.tenant, inputs, &mut call.deadline_us, &mut attachments).await?;
        self.invoke_graph(principal, call, attachments).await
    }

    /// Replaces inputs that are outputs of futures by the bytes of these outputs. The time until
    /// the futures end counts toward the deadline of the call.
    async fn resolve(
        &self,
        tenant: &Tenant,
        inputs: Vec<&mut Input>,
        deadline_us: &mut Option<u64>,
        attachments: &mut Attachments,
    ) -> Result<(), Refusal> {
        let begun = Instant::now();
        // Limits the copies, because one output may be the input of many functions.
        let mut room = FUTURES_BYTES_MAX;
        let ends = deadline_us.and_then(|us| begun.checked_add(Duration::from_micros(us)));
        for input in inputs {
            let Input::Future { future, output } = &*input else { continue };
            let ended = tokio::select! {
                biased;
                ended = self.futures.wait(tenant, future) => ended?,
                () = crate::inference::passed(ends) => {
                    let message = format!("future `{future}` did not end before the deadline");
                    return Err(Refusal { kind: RefusalKind::Deadline, message });
                }
            };
            let kept = (*ended).as_ref().map_err(|refusal| Refusal {
                kind: refusal.kind,
                message: format!("future `{future}` failed: {}", refusal.message),
            })?;
            let bytes = kept.output(future, output)?.1.map_or(0, Vec::len);
            room = room.checked_sub(bytes).ok_or_else(|| {
                let message = format!("inputs from futures have more than {FUTURES_BYTES_MAX} bytes together");
                Refusal { kind: RefusalKind::Quota, message }
            })?;
            *input = kept.input(future, output, attachments)?;
        }
        if let Some(us) = deadline_us {
            let waited = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            *us = us.saturating_sub(waited).max(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_control::{Form, Timing};
    use atoll_protocol::DataType;

    fn kept(bytes: usize) -> Kept {
        let form = Form { datatype: DataType::Uint8, shape: vec![bytes as i64] };
        let value = Value::Blob(Attachments::default().add(&[]).unwrap());
        let outputs = vec![Output { stage: 0, name: "y".into(), form, value }];
        let answer = Invoked { outputs, timing: Timing::default(), preemptions: 0, plan: None };
        Kept { answer, bytes: vec![Some(vec![7; bytes])] }
    }

    fn tenants() -> [Tenant; 2] {
        ["a", "b"].map(|name| name.parse().unwrap())
    }

    #[tokio::test]
    async fn outputs_are_kept_for_their_tenant_within_a_limit() {
        let (futures, [a, b]) = (Arc::new(Futures::default()), tenants());
        let begin = |name: &str| futures.begin(&a, name.into());
        begin("one").unwrap().end(Ok(kept(FUTURES_BYTES_MAX - 1)));
        assert!(futures.wait(&a, "one").await.unwrap().is_ok());
        assert!(futures.wait(&b, "one").await.is_err(), "another tenant's");
        begin("two").unwrap().end(Ok(kept(2)));
        let ended = futures.wait(&a, "two").await.unwrap();
        assert!((*ended).as_ref().err().unwrap().message.contains("limit of"));
        assert!(begin("one").err().unwrap().message.contains("there is a future `one`"));
        assert!(futures.forget(&a, "one", None) && !futures.forget(&a, "one", None));
        begin("three").unwrap().end(Ok(kept(2)));
        assert!(futures.wait(&a, "three").await.unwrap().is_ok(), "there is room again");
        assert!(begin("a name").is_err());
    }

    #[tokio::test]
    async fn the_number_of_futures_is_limited_and_a_dropped_call_ends_its_future() {
        let (futures, [a, b]) = (Arc::new(Futures::default()), tenants());
        let all: Vec<Pending> = (0..FUTURES_MAX).map(|n| futures.begin(&a, format!("f{n}")).unwrap()).collect();
        assert_eq!(futures.begin(&a, "more".into()).err().unwrap().kind, RefusalKind::Quota);
        assert!(futures.begin(&b, "more".into()).is_ok());
        assert!(futures.forget(&a, "f1", None));
        assert!(futures.begin(&a, "more".into()).is_err(), "the call of `f1` has not ended");
        drop(all);
        assert!(futures.begin(&a, "more".into()).is_ok());
        let ended = futures.wait(&a, "f0").await.unwrap();
        assert!((*ended).as_ref().err().unwrap().message.contains("cancelled"));
    }

    #[tokio::test]
    async fn the_end_of_an_old_future_does_not_remove_a_new_one_of_its_name() {
        let (futures, [a, _]) = (Arc::new(Futures::default()), tenants());
        let first = futures.begin(&a, "f".into()).unwrap();
        let other = futures.begin(&a, "g".into()).unwrap();
        let number = first.number;
        assert!(futures.forget(&a, "f", None));
        let second = futures.begin(&a, "f".into()).unwrap();
        assert!(!futures.forget(&a, "f", Some(number)), "{number}, {}", second.number);
        first.end(Ok(kept(1)));
        second.end(Ok(kept(3)));
        let ended = futures.wait(&a, "f").await.unwrap();
        let Ok(kept) = &*ended else { panic!("it succeeded") };
        let mut attachments = Attachments::default();
        let input = kept.input("f", "y", &mut attachments).unwrap();
        assert!(matches!(input, Input::Bytes { form, .. } if form.shape == [3]));
        assert!(kept.input("f", "z", &mut attachments).unwrap_err().message.contains("it has y"));
        drop(other);
    }
}
