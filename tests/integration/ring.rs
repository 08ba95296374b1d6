//! Rings with a real daemon: requests through shared memory, clients that break the protocol or are
//! killed, several tenants, and the interfaces for C and Python.

mod hostile;

use crate::cancel::metric;
use crate::control::{Setup, affine, refusal, vector};
use crate::executors::wait_until;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{
    Call, Class, Client, ClientError, DataType, Deploy, RefusalKind, Ring, RingAnswer, RingCall, RingOptions, Tensor,
};
use atoll_tests::{program, python, root};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A daemon with the public functions `affine` and `faulty`.
fn start(options: &[&str], config: &str) -> Result<Setup> {
    let setup = Setup::start(&[&["--time-limit", "600"][..], options].concat(), config)?;
    for function in ["affine.kg", "faulty.kg"] {
        setup.client()?.deploy(&setup.path(function), &Deploy::default())?;
    }
    Ok(setup)
}

/// Options without spinning, so that tests that run in parallel do not compete for the CPUs.
fn asleep(slots: u32) -> RingOptions {
    RingOptions { slots, spin: Duration::ZERO, daemon_spin: Duration::ZERO, ..RingOptions::default() }
}

fn ring(setup: &Setup, tenant: &str) -> Result<Ring> {
    Ok(setup.client_of(tenant)?.open_ring(&asleep(4))?)
}

fn mode(mode: u32) -> Tensor {
    Tensor { datatype: DataType::Uint32, shape: vec![1], bytes: mode.to_le_bytes().into() }
}

fn failed(result: Result<RingAnswer, ClientError>) -> Result<(RefusalKind, String)> {
    refusal(result)
}

#[test]
fn requests_have_the_results_of_the_socket() -> Result<()> {
    let setup = start(&[], "")?;
    let mut client = setup.client()?;
    client.deploy(
        &setup.path("affine.kg"),
        &Deploy { name: Some("hidden".into()), private: true, ..Deploy::default() },
    )?;
    for options in [RingOptions::default(), asleep(4)] {
        let mut ring = setup.client()?.open_ring(&options)?;
        ensure!(ring.tenant().as_str() == "local" && ring.request_bytes() == 1 << 20);
        ring.ping()?;
        for (count, model) in [(0, "affine"), (1, "affine"), (1000, "hidden"), (80_000, "affine")] {
            let (x, b) = (vector((0..count).map(|i| i as f32 / 7.0)), vector((0..count).map(|i| -(i as f32))));
            let answer = ring.infer(&RingCall::of(model).input("b", &b).input("x", &x).id("an id"))?;
            let expected = client.invoke(Call::of(model).input("x", x.clone()).input("b", b.clone()))?;
            ensure!(answer.tensor("y")? == expected.tensor("y")? && answer.tensor("y")? == &affine(&x, &b));
            ensure!(answer.outputs.len() == 1 && answer.version == "1");
        }
        // As many requests as there are slots, received in another order.
        let b = vector([1.0; 100]);
        let inputs: Vec<Tensor> = (0..4).map(|seed| vector((0..100).map(|i| (i * seed) as f32))).collect();
        for _ in 0..20 {
            let sent: Result<Vec<_>, _> = inputs
                .iter()
                .map(|x| ring.send(&RingCall::of("affine").input("x", x).input("b", &b).output("y")))
                .collect();
            let mut sent = sent?;
            let full = ring.send(&RingCall::of("affine")).map(drop);
            ensure!(matches!(full, Err(ClientError::RingFull(4))));
            for (x, ticket) in inputs.iter().zip(sent.drain(..)).rev() {
                ensure!(ring.receive(ticket)?.tensor("y")? == &affine(x, &b));
            }
        }
        let x = &inputs[1];
        let call = RingCall::of("affine").input("x", x).input("b", &b).version("1").class(Class::RealTime);
        ring.infer(&call.deadline(Duration::from_secs(60)))?;
    }
    let local = "{tenant=\"local\"}";
    wait_until("closed rings", || Ok(metric(&setup.daemon, &format!("atoll_rings{local}"))? == 0.0))?;
    ensure!(metric(&setup.daemon, &format!("atoll_ring_memory_bytes{local}"))? == 0.0);
    ensure!(metric(&setup.daemon, "atoll_rings_closed_total{reason=\"client\"}")? == 2.0);
    let answers = 2.0 * (4.0 + 80.0 + 1.0);
    ensure!(metric(&setup.daemon, "atoll_ring_requests_total{outcome=\"success\"}")? == answers);
    ensure!(metric(&setup.daemon, "atoll_ring_sleeps_total")? > 0.0);
    ensure!(metric(&setup.daemon, "atoll_requests_total{class=\"real_time\",outcome=\"success\"}")? == 2.0);
    Ok(())
}

#[test]
fn wrong_requests_are_refused_and_the_ring_continues() -> Result<()> {
    let setup = start(&[], "")?;
    let mut ring = ring(&setup, "local")?;
    let (x, b) = (vector([1.0; 64]), vector([2.0; 64]));
    let matrix = Tensor { shape: vec![8, 8], ..x.clone() };
    let short = Tensor { shape: vec![65], ..x.clone() };
    let negative = Tensor { shape: vec![-64], ..x.clone() };
    let integers = Tensor { datatype: DataType::Int32, ..x.clone() };
    let strings = Tensor { datatype: DataType::Bytes, ..x.clone() };
    let call = || RingCall::of("affine").input("b", &b);
    let large = "m".repeat(3000);
    let faulty = mode(5);
    for (call, kind, says) in [
        (call(), RefusalKind::BadRequest, "needs input `x"),
        (call().input("x", &matrix), RefusalKind::BadRequest, "does not fit"),
        (call().input("x", &short), RefusalKind::BadRequest, "needs 260 bytes"),
        (call().input("x", &negative), RefusalKind::BadRequest, "negative dimension"),
        (call().input("x", &integers), RefusalKind::BadRequest, "INT32"),
        (call().input("x", &strings), RefusalKind::BadRequest, "BYTES"),
        (call().input("x", &x).input("x", &x), RefusalKind::BadRequest, "given twice"),
        (call().input("z", &x), RefusalKind::BadRequest, "has no input `z`"),
        (call().input("x", &x).output("z"), RefusalKind::BadRequest, "has no output `z`"),
        (call().input("x", &x).parameter("priority", "one"), RefusalKind::BadRequest, "priority"),
        (call().input("x", &x).parameter("instance", "none"), RefusalKind::BadRequest, "has no instances"),
        (call().input("x", &x).version("7"), RefusalKind::NotFound, "7"),
        (RingCall::of("missing"), RefusalKind::NotFound, "missing"),
        (RingCall::of(""), RefusalKind::NotFound, ""),
        (RingCall::of(&large), RefusalKind::NotFound, "mmm"),
        (RingCall::of("faulty").input("mode", &faulty).deadline(Duration::from_millis(20)), RefusalKind::Deadline, ""),
    ] {
        let (found, message) = failed(ring.infer(&call))?;
        ensure!(found == kind && message.contains(says), "{says}: {found:?} {message}");
        ensure!(ring.infer(&call_of(&x, &b))?.tensor("y")? == &affine(&x, &b), "after {says}");
    }
    // A request that does not fit is not sent.
    let longer = "m".repeat(5000);
    let error = ring.infer(&RingCall::of(&longer)).map(drop);
    ensure!(matches!(error, Err(ClientError::Call(_))), "{error:?}");
    let huge = vector(vec![0.0; 1 << 19]);
    let error = ring.infer(&call_of(&huge, &b)).map(drop);
    ensure!(matches!(error, Err(ClientError::NoRoom { .. })), "{error:?}");
    // Inputs that leave no room for the output.
    let many = vector(vec![0.0; 120_000]);
    let (kind, message) = failed(ring.infer(&call_of(&many, &many)))?;
    ensure!(kind == RefusalKind::BadRequest && message.contains("does not fit the window"), "{message}");
    ensure!(metric(&setup.daemon, "atoll_ring_requests_total{outcome=\"failure\"}")? == 17.0);
    Ok(())
}

fn call_of<'a>(x: &'a Tensor, b: &'a Tensor) -> RingCall<'a> {
    RingCall::of("affine").input("x", x).input("b", b)
}

#[test]
fn rings_have_the_rights_and_quotas_of_their_tenants() -> Result<()> {
    let config = "[tenant.small]\ninvocations = 1\nclass = \"best-effort\"\n[tenant.other]\nmodels = [\"affine\"]\n";
    let setup = start(&[], config)?;
    let private = |name: &str| Deploy { name: Some(name.into()), private: true, ..Deploy::default() };
    setup.client_of("small")?.deploy(&setup.path("faulty.kg"), &private("own"))?;
    let (mut small, mut other) = (ring(&setup, "small")?, ring(&setup, "other")?);
    let (x, b, endless, fine) = (vector([1.0]), vector([2.0]), mode(5), mode(0));

    // The functions of another tenant do not exist, private or not.
    for name in ["own", "small:own"] {
        let (kind, _) = failed(other.infer(&RingCall::of(name).input("mode", &fine)))?;
        ensure!(kind == RefusalKind::NotFound, "{kind:?}");
    }
    ensure!(other.infer(&call_of(&x, &b))?.tensor("y")? == &affine(&x, &b));
    let (kind, message) = failed(small.infer(&call_of(&x, &b).class(Class::RealTime)))?;
    ensure!(matches!(kind, RefusalKind::NotFound | RefusalKind::Denied), "{message}");
    let real_time = RingCall::of("own").input("mode", &fine).class(Class::RealTime);
    let (kind, message) = failed(small.infer(&real_time))?;
    ensure!(kind == RefusalKind::Denied && message.contains("best-effort work only"), "{message}");

    // One invocation at a time, over all rings of the tenant.
    let endless = RingCall::of("own").input("mode", &endless).deadline(Duration::from_secs(2));
    let (mut second, fine) = (ring(&setup, "small")?, RingCall::of("own").input("mode", &fine));
    let running = small.send(&endless)?;
    let mut client = setup.client_of("small")?;
    wait_until("the first request runs", || Ok(client.statistics()?.functions[0].pending == 1))?;
    let (kind, message) = failed(second.infer(&fine))?;
    ensure!(kind == RefusalKind::Quota && message.contains("may have 1 at one time"), "{message}");
    ensure!(other.infer(&call_of(&x, &b)).is_ok(), "quotas of other tenants do not count");
    ensure!(failed(small.receive(running))?.0 == RefusalKind::Deadline);
    ensure!(second.infer(&fine)?.outputs.len() == 1);

    // The number of rings of a tenant.
    let mut held = Vec::new();
    let refused = loop {
        match setup.client_of("other")?.open_ring(&asleep(1)) {
            Ok(ring) => held.push(ring),
            Err(error) => break error,
        }
    };
    ensure!(held.len() == 15 && refused.to_string().contains("has 16 open rings"), "{}: {refused}", held.len());
    ensure!(metric(&setup.daemon, "atoll_rings{tenant=\"other\"}")? == 16.0);
    ring(&setup, "small")?.ping()?;
    held.truncate(3);
    wait_until("closed rings", || Ok(metric(&setup.daemon, "atoll_rings{tenant=\"other\"}")? == 4.0))?;
    setup.client_of("other")?.open_ring(&asleep(1))?.ping()?;
    let too_large = RingOptions { arena_bytes: 1 << 40, ..asleep(1) };
    let (kind, message) = refusal(setup.client()?.open_ring(&too_large))?;
    ensure!(kind == RefusalKind::BadRequest && message.contains("at most 268435456 bytes"), "{message}");
    Ok(())
}

#[test]
fn a_daemon_that_stops_or_dies_ends_its_rings() -> Result<()> {
    let mut setup = start(&[], "")?;
    let mut waiting = ring(&setup, "local")?;
    let endless = mode(5);
    let ticket = waiting.send(&RingCall::of("faulty").input("mode", &endless))?;
    setup.kill_and_restart()?;
    let error = waiting.receive(ticket).map(drop);
    ensure!(matches!(error, Err(ClientError::Closed | ClientError::Wire(_))), "{error:?}");

    let mut idle = ring(&setup, "local")?;
    idle.ping()?;
    let status = setup.daemon.signal(Signal::TERM)?;
    ensure!(status.success(), "{status}");
    let (kind, message) = refusal(idle.ping())?;
    ensure!(kind == RefusalKind::Busy && message.contains("is stopping"), "{message}");
    Ok(())
}

/// The C program of the tests.
fn compiled(folder: &Path) -> Result<PathBuf> {
    let library = program("libatoll_ring_c.so");
    let libraries = library.parent().context("a library is in a folder")?;
    let (to, sources) = (folder.join("program"), root().join("integrations/ring"));
    let mut command = Command::new("cc");
    command.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&to);
    command.arg(sources.join("tests/program.c")).arg("-I").arg(sources.join("include"));
    command.arg(format!("-L{}", libraries.display())).arg("-latoll_ring_c");
    command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(to)
}

#[test]
fn programs_in_c_and_python_use_rings() -> Result<()> {
    let setup = start(&[], "")?;
    let socket = setup.path("atoll.sock");
    let output = Command::new(compiled(&setup.path(""))?).arg(&socket).arg("affine").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && text == "ok\n", "{text}{}", String::from_utf8_lossy(&output.stderr));

    let packages = crate::python::package()?;
    let mut script = Command::new(python());
    script.arg("-B").arg(root().join("tests/python/ring.py")).arg(&socket).arg(&setup.daemon.http);
    let output = script.env("PYTHONPATH", packages.path()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn a_client_that_is_killed_leaves_nothing() -> Result<()> {
    let setup = start(&[], "")?;
    let mut client = setup.client()?;
    let pending = |client: &mut Client| -> Result<u64> {
        let functions = client.statistics()?.functions;
        Ok(functions.iter().find(|function| function.name == "faulty").context("faulty")?.pending)
    };
    let compiled = compiled(&setup.path(""))?;
    for _ in 0..3 {
        let mut child =
            Command::new(&compiled).arg(setup.path("atoll.sock")).arg("hang").stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let Some(line) = lines.next().transpose()? else { bail!("it printed nothing") };
        ensure!(line == "sent", "{line}");
        wait_until("the request runs", || Ok(pending(&mut client)? == 1))?;
        ensure!(metric(&setup.daemon, "atoll_rings{tenant=\"local\"}")? == 1.0);
        child.kill()?;
        child.wait()?;
        wait_until("its request has ended", || Ok(pending(&mut client)? == 0))?;
        wait_until("its ring is closed", || Ok(metric(&setup.daemon, "atoll_rings{tenant=\"local\"}")? == 0.0))?;
    }
    let fine = mode(0);
    ensure!(ring(&setup, "local")?.infer(&RingCall::of("faulty").input("mode", &fine))?.outputs.len() == 1);
    Ok(())
}

#[test]
fn the_example_of_rings_does_what_it_says() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let mut example = Command::new(env!("CARGO_BIN_EXE_ring_example"));
    example.arg(setup.path("affine.kg")).env("XDG_RUNTIME_DIR", setup.path("")).env_remove("ATOLL_CONTROL_SOCKET");
    let output = example.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let says = ["y: [16]", "equal: true", "answered after"];
    ensure!(output.status.success() && says.iter().all(|part| text.contains(part)), "{output:?}");
    Ok(())
}
