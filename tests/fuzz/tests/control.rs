//! Fuzz targets of the control protocol: any bytes are a request or an error, and memory grows only
//! with the bytes that have arrived.

use atoll_control::{Attachments, Blob, Incoming, Outgoing, Progress, Request, limits};
use bolero::check;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Requests to mutate.
const SEEDS: [&str; 4] = [
    r#"{"request":"hello","tenant":"a"}"#,
    r#"{"request":"deploy","name":"f","class":"real-time","private":true,"bundle":{"inline":{"offset":0,"bytes":4}}}"#,
    r#"{"request":"put","form":{"datatype":"FP32","shape":[2,3]},"class":null,"blob":{"file":0}}"#,
    r#"{"request":"invoke","call":{"stages":{"stages":[{"function":"f",
      "inputs":{"x":{"bytes":{"form":{"datatype":"FP32","shape":[1]},"blob":{"inline":{"offset":0,"bytes":4}}}},
      "y":{"output":{"stage":0,"name":"z"}}},"outputs":{"z":"keep"}}],"remember":false}},"class":null,
      "deadline_us":1}"#,
];

/// Reads frames from the bytes, and takes the contents that they refer to.
fn exercise(bytes: &[u8]) {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    // Bytes that do not fit the socket buffer are ignored.
    ours.set_nonblocking(true).expect("a socket");
    let _ = ours.write(bytes);
    drop(ours);
    let mut incoming = Incoming::default();
    loop {
        match incoming.step(&theirs) {
            Ok(Progress::More) => {}
            Ok(Progress::Done(frame)) => {
                if let Ok((request, mut attachments)) = frame.decode::<Request>() {
                    for blob in blobs(&request) {
                        let _ = attachments.take(blob);
                    }
                    assert!(
                        Outgoing::new(&request, Attachments::default()).is_ok()
                            || bytes.len() > limits::MESSAGE_BYTES_MAX / 8
                    );
                }
            }
            Ok(Progress::Closed) | Err(_) => return,
        }
    }
}

fn blobs(request: &Request) -> Vec<Blob> {
    match request {
        Request::Deploy(deploy) => vec![deploy.bundle],
        Request::Put(put) => vec![put.blob],
        _ => vec![Blob::File(0), Blob::Inline { offset: u32::MAX, bytes: u32::MAX }],
    }
}

fn framed(message: &[u8], body: &[u8]) -> Vec<u8> {
    let sizes = [message.len() as u32, body.len() as u32].map(u32::to_le_bytes).concat();
    [b"ATLC\x01\x00\x00\x00", sizes.as_slice(), message, body].concat()
}

#[test]
fn any_bytes() {
    check!().for_each(|bytes: &[u8]| exercise(bytes));
}

#[test]
fn any_messages() {
    check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(message, body)| exercise(&framed(message, body)));
}

#[test]
fn mutated_requests() {
    check!().with_type::<(u8, Vec<(u16, u8)>)>().for_each(|(seed, changes)| {
        let mut message = SEEDS[usize::from(*seed) % SEEDS.len()].as_bytes().to_vec();
        for (at, byte) in changes.iter().take(6) {
            let at = usize::from(*at) % message.len();
            message[at] = *byte;
        }
        exercise(&framed(&message, b"abcd"));
    });
}

#[test]
fn the_seeds_are_requests() {
    SEEDS.into_iter().for_each(decoded);
}

fn decoded(seed: &str) {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.write_all(&framed(seed.as_bytes(), b"abcd")).expect("room");
    let mut incoming = Incoming::default();
    loop {
        match incoming.step(&theirs).expect("a frame") {
            Progress::More => {}
            Progress::Closed => panic!("a frame"),
            Progress::Done(frame) => return drop(frame.decode::<Request>().expect("a request")),
        }
    }
}
