//! Peers of the control socket: many clients at once, peers that violate the protocol, disconnected
//! clients, and a second hello.

use super::{Setup, affine, refusal, vector};
use anyhow::{Result, bail, ensure};
use atoll_client::{Answer, Call, Client, DataType, Deploy, RefusalKind, Tenant, Tensor};
use atoll_control::{Attachments, Frame, Incoming, Outgoing, Progress, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn many_clients_are_served_beside_invalid_peers() -> Result<()> {
    let mut setup = Setup::start(&["--queue-capacity", "1000"], "")?;
    setup.client()?.deploy(&setup.path("affine.kg"), &Deploy::default())?;
    let socket = setup.socket();
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..100)
            .map(|i: u32| {
                let socket = &socket;
                scope.spawn(move || -> Result<()> {
                    let mut client = Client::connect(socket)?;
                    let (x, b) = (vector((0..256).map(|k| (k * i) as f32)), vector([i as f32; 256]));
                    let kept = client.put(&b, None)?;
                    for _ in 0..4 {
                        let answer = client.invoke(Call::of("affine").input("x", x.clone()).input("b", kept))?;
                        ensure!(answer.tensor("y")? == &affine(&x, &b), "client {i}");
                    }
                    ensure!(client.get(kept)? == b);
                    Ok(client.remove_object(kept)?)
                })
            })
            .collect();
        let invalid_peers = scope.spawn(|| invalid_peers(&socket));
        clients.into_iter().try_for_each(|client| client.join().expect("client threads do not panic"))?;
        invalid_peers.join().expect("the thread of invalid peers does not panic")
    })?;
    ensure!(setup.daemon.is_running()?, "the daemon exited");
    let mut client = setup.client()?;
    ensure!(client.objects()?.is_empty());
    let function = client.statistics()?.functions.remove(0);
    ensure!((function.success, function.failure) == (400, 0), "{function:?}");
    Ok(())
}

/// Peers that violate the protocol, each in a different way.
fn invalid_peers(socket: &Path) -> Result<()> {
    let head = |version: u16, files: u16, message: u32, body: u32| -> Vec<u8> {
        [&b"ATLC"[..], &version.to_le_bytes(), &files.to_le_bytes(), &message.to_le_bytes(), &body.to_le_bytes()]
            .concat()
    };
    let with = |message: &str| [head(1, 0, message.len() as u32, 0), message.into()].concat();
    for (bytes, says) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "does not speak"),
        (head(9, 0, 2, 0), "version 9"),
        (head(1, 0, u32::MAX, 0), "bytes of message"),
        (head(1, 0, 2, u32::MAX), "bytes of body"),
        (head(1, u16::MAX, 2, 0), "files"),
        ([head(1, 3, 2, 0), b"{}".to_vec()].concat(), "announces 3 files, but has 0"),
        (with("{}"), "the message is not valid"),
        (with("[[[[[[[["), "the message is not valid"),
        (with(r#"{"request":"launch-missiles"}"#), "launch-missiles"),
        (
            with(r#"{"request":"put","form":null,"class":null,"blob":{"file":0}}"#),
            "content that its frame does not have",
        ),
        (
            with(
                r#"{"request":"put","form":null,"class":null,
                    "blob":{"inline":{"offset":4294967295,"bytes":4294967295}}}"#,
            ),
            "content",
        ),
        (with(r#"{"request":"get","digest":"../../etc/passwd"}"#), "64 hexadecimal digits"),
        (with(r#"{"request":"hello","tenant":"../a"}"#), "is not a tenant name"),
        (with(r#"{"request":"remove","function":"../../x"}"#), "there is no function"),
        (
            with(r#"{"request":"invoke","call":{"again":{"plan":7,"rename":[]}},"class":null,"deadline_us":null}"#),
            "has not remembered a call",
        ),
    ] {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(&bytes)?;
        let answer = receive(&stream)?;
        ensure!(answer.contains("refused") && answer.contains(says), "{says}: {answer}");
    }
    // A file that is not immutable is refused.
    for file in [std::fs::File::open("/dev/zero")?, tempfile::tempfile()?] {
        let stream = UnixStream::connect(socket)?;
        send_with_file(&stream, r#"{"request":"put","form":null,"class":null,"blob":{"file":0}}"#, &file)?;
        let answer = receive(&stream)?;
        ensure!(answer.contains("not a memory file sealed"), "{answer}");
    }
    // Peers that send before the answer, or disconnect within a frame, are dropped.
    for bytes in
        [&head(1, 0, 100, 0)[..], b"AT", &[with(r#"{"request":"objects"}"#), with(r#"{"request":"objects"}"#)].concat()]
    {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(bytes)?;
    }
    Ok(())
}

fn send_with_file(stream: &UnixStream, message: &str, file: &std::fs::File) -> Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;
    let bytes =
        [b"ATLC\x01\x00\x01\x00".to_vec(), (message.len() as u32).to_le_bytes().into(), vec![0; 4], message.into()]
            .concat();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ensure!(control.push(SendAncillaryMessage::ScmRights(&files)));
    ensure!(sendmsg(stream, &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::empty())? == bytes.len());
    Ok(())
}

/// The text of a frame.
fn receive(mut stream: &UnixStream) -> Result<String> {
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let mut message = vec![0; u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize];
    stream.read_exact(&mut message)?;
    Ok(String::from_utf8(message)?)
}

#[test]
fn a_disconnected_client_cancels_its_call() -> Result<()> {
    let setup = Setup::start(&["--time-limit", "600"], "")?;
    let mut client = setup.client()?;
    client.deploy(&setup.path("faulty.kg"), &Deploy::default())?;
    let endless = || {
        Call::of("faulty").input("mode", Tensor { datatype: DataType::Uint32, shape: vec![1], bytes: vec![5, 0, 0, 0] })
    };
    let mut child = setup.command(&["fn", "invoke", "faulty", "mode=5"]).stdout(std::process::Stdio::null()).spawn()?;
    let begin = Instant::now();
    while client.statistics()?.functions[0].pending == 0 {
        ensure!(begin.elapsed() < Duration::from_secs(60) && child.try_wait()?.is_none(), "it never called");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    let begin = Instant::now();
    while client.statistics()?.functions[0].failure == 0 {
        ensure!(begin.elapsed() < Duration::from_secs(60), "its call still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (kind, _) = refusal(client.invoke(endless().deadline(Duration::from_millis(50))))?;
    ensure!(kind == RefusalKind::Deadline);
    let fine =
        Call::of("faulty").input("mode", Tensor { datatype: DataType::Uint32, shape: vec![1], bytes: vec![0; 4] });
    let Answer { outputs, .. } = client.invoke(fine)?;
    ensure!(outputs.len() == 1, "the device is free again");
    Ok(())
}

/// A connection acts for one tenant until another hello, and then remembers nothing of the previous
/// one.
#[test]
fn a_second_hello_restarts_the_connection() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let stream = UnixStream::connect(setup.socket())?;
    let ask = |request: &Request| -> Result<String> {
        let mut outgoing = Outgoing::new(request, Attachments::default())?;
        while let Progress::More = outgoing.step(&stream)? {}
        let mut incoming = Incoming::default();
        let frame: Frame = loop {
            match incoming.step(&stream)? {
                Progress::More => {}
                Progress::Done(frame) => break frame,
                Progress::Closed => bail!("closed"),
            }
        };
        Ok(frame.decode::<serde_json::Value>()?.0.to_string())
    };
    let hello = |tenant: &str| -> Result<String> { ask(&Request::Hello { tenant: Some(tenant.parse::<Tenant>()?) }) };
    ensure!(ask(&Request::Objects)?.contains("objects"), "without a hello a connection acts for its own tenant");
    ensure!(hello("a")?.contains("\"a\"") && hello("b")?.contains("\"b\""));
    ensure!(ask(&Request::Statistics)?.contains("\"tenant\":\"b\""));
    Ok(())
}
