//! Tests of the futures of tenants.

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

/// A call of the function `line`.
fn line() -> Target {
    Target { functions: vec!["line".into()], graph: None }
}

fn tenants() -> [Tenant; 2] {
    ["a", "b"].map(|name| name.parse().unwrap())
}

#[tokio::test]
async fn outputs_are_kept_for_their_tenant_within_a_limit() {
    let (futures, [a, b]) = (Arc::new(Futures::default()), tenants());
    let begin = |name: &str| futures.begin(&a, name.into(), line(), 0);
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
    let all: Vec<Pending> = (0..FUTURES_MAX).map(|n| futures.begin(&a, format!("f{n}"), line(), 0).unwrap()).collect();
    assert_eq!(futures.begin(&a, "more".into(), line(), 0).err().unwrap().kind, RefusalKind::Quota);
    assert!(futures.begin(&b, "more".into(), line(), 0).is_ok());
    assert!(futures.forget(&a, "f1", None));
    assert!(futures.begin(&a, "more".into(), line(), 0).is_err(), "the call of `f1` has not ended");
    drop(all);
    assert!(futures.begin(&a, "more".into(), line(), 0).is_ok());
    let ended = futures.wait(&a, "f0").await.unwrap();
    assert!((*ended).as_ref().err().unwrap().message.contains("cancelled"));
}

#[tokio::test]
async fn the_end_of_an_old_future_does_not_remove_a_new_one_of_its_name() {
    let (futures, [a, _]) = (Arc::new(Futures::default()), tenants());
    let first = futures.begin(&a, "f".into(), line(), 0).unwrap();
    let other = futures.begin(&a, "g".into(), line(), 0).unwrap();
    let number = first.number;
    assert!(futures.forget(&a, "f", None));
    let second = futures.begin(&a, "f".into(), line(), 0).unwrap();
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

#[tokio::test]
async fn what_became_of_a_future_is_told_to_its_tenant_only() {
    let (futures, [a, b]) = (Arc::new(Futures::default()), tenants());
    let message = |tenant: &Tenant, name: &str| futures.reports(tenant, Some(name)).unwrap_err().message;
    assert!(message(&a, "f").ends_with("there is no future `f`; outputs are kept for 60 s"), "{}", message(&a, "f"));
    let pending = futures.begin(&a, "f".into(), line(), 0).unwrap();
    let running = futures.reports(&a, Some("f")).unwrap().remove(0);
    assert_eq!((running.state, running.expires_in_ms, running.bytes), (FutureState::Running, None, 0));
    let number = pending.number;
    pending.end(Ok(kept(3)));
    let done = futures.reports(&a, None).unwrap().remove(0);
    assert_eq!((done.state, done.bytes, done.functions), (FutureState::Done, 3, vec!["line".to_owned()]));
    assert!(done.expires_in_ms.is_some_and(|ms| ms <= 60_000) && done.outputs[0].form.shape == [3]);
    assert!(futures.reports(&b, None).unwrap().is_empty());
    assert!(futures.forget(&a, "f", Some(number)));
    assert!(message(&a, "f").contains("its outputs were kept for 60 s, until"));
    drop(futures.begin(&a, "f".into(), line(), 0));
    assert!(futures.forget(&a, "f", None));
    assert!(message(&a, "f").contains("it was forgotten by request"));
    assert!(!message(&b, "f").contains("any more"));
}

#[tokio::test]
async fn a_call_is_cancelled_once_and_its_future_tells_so() {
    let (futures, [a, b]) = (Arc::new(Futures::default()), tenants());
    let mut pending = futures.begin(&a, "f".into(), line(), 0).unwrap();
    assert_eq!(futures.cancel(&b, "f").await.unwrap_err().kind, RefusalKind::NotFound);
    let call = tokio::spawn(async move {
        let received = (&mut pending.cancelled).await;
        pending.end(Err(cancelled()));
        received
    });
    futures.cancel(&a, "f").await.unwrap();
    assert_eq!(call.await.unwrap(), Ok(()));
    let failed = futures.reports(&a, Some("f")).unwrap().remove(0);
    assert_eq!(failed.failure.map(|refusal| refusal.message), Some("the call of the future was cancelled".into()));
    assert!(futures.cancel(&a, "f").await.unwrap_err().message.contains("has already ended"));
    // A future that is forgotten does not cancel its call.
    let mut pending = futures.begin(&a, "g".into(), line(), 0).unwrap();
    assert!(futures.forget(&a, "g", None));
    assert!((&mut pending.cancelled).await.is_err());
}

#[tokio::test]
async fn files_and_copies_of_calls_are_limited() {
    let (futures, [a, b]) = (Arc::new(Futures::default()), tenants());
    let begin = |tenant: &Tenant, name: &str, files| futures.begin(tenant, name.into(), line(), files);
    let most = begin(&a, "most", CONTROL_FILES_PER_USER_MAX).unwrap();
    assert!(begin(&a, "more", 1).err().unwrap().message.contains("files"));
    assert!(begin(&b, "more", 1).is_ok());
    drop(most);
    assert!(begin(&a, "more", 1).is_ok());
    let room = futures.hold_inputs(&a, FUTURE_INPUTS_BYTES_MAX).unwrap();
    assert!(futures.hold_inputs(&a, 1).err().unwrap().message.contains("as inputs"));
    drop(room);
    assert!(futures.hold_inputs(&a, 1).is_ok());
}
