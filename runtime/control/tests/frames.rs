//! Frames over a real pair of sockets, with reads and writes of any size.

use atoll_control::{
    Answer, Attachments, Blob, Content, Frame, Incoming, Outgoing, Progress, Request, WireError, limits,
};
use atoll_sealed::Sealed;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::net::UnixStream;

fn send(stream: &UnixStream, request: &Request, attachments: Attachments) {
    let mut frame = Outgoing::new(request, attachments).expect("it fits");
    while let Progress::More = frame.step(stream).expect("the peer listens") {}
}

fn receive(stream: &UnixStream) -> Result<Option<Frame>, WireError> {
    let mut incoming = Incoming::default();
    loop {
        match incoming.step(stream)? {
            Progress::More => {}
            Progress::Done(frame) => return Ok(Some(frame)),
            Progress::Closed => return Ok(None),
        }
    }
}

#[test]
fn what_is_sent_arrives_with_its_files() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (small, large) = (vec![1; 100], vec![2; limits::INLINE_BYTES_MAX + 1]);
    let mut attachments = Attachments::default();
    let blobs = [attachments.add(&small).unwrap(), attachments.add(&large).unwrap(), attachments.add(&[]).unwrap()];
    assert!(matches!(blobs, [Blob::Inline { bytes: 100, .. }, Blob::File(0), Blob::Inline { bytes: 0, .. }]));
    send(&ours, &Request::Objects, attachments);
    send(&ours, &Request::Functions, Attachments::default());
    drop(ours);
    let (request, mut attachments) = receive(&theirs).unwrap().unwrap().decode::<Request>().unwrap();
    assert_eq!(request, Request::Objects);
    assert_eq!(attachments.take(blobs[0]).unwrap().into_vec().unwrap(), small);
    let Content::Sealed(file) = attachments.take(blobs[1]).unwrap() else { panic!("a file") };
    assert_eq!(file.to_vec().unwrap(), large);
    assert!(matches!(attachments.take(blobs[1]), Err(WireError::NoContent)), "a file is taken once");
    assert!(matches!(attachments.take(Blob::File(9)), Err(WireError::NoContent)));
    assert!(matches!(attachments.take(Blob::Inline { offset: 99, bytes: 2 }), Err(WireError::NoContent)));
    assert_eq!(receive(&theirs).unwrap().unwrap().decode::<Request>().unwrap().0, Request::Functions);
    assert!(receive(&theirs).unwrap().is_none());
}

#[test]
fn the_sender_refuses_frames_that_exceed_a_limit() {
    let mut attachments = Attachments::default();
    let large = Sealed::of("test", &vec![0; limits::INLINE_BYTES_MAX + 1]).unwrap();
    for _ in 0..limits::FILES_MAX {
        attachments.add_sealed(&large).unwrap();
    }
    assert!(attachments.add_sealed(&large).is_err());
    let mut bodies = Attachments::default();
    let blobs: Vec<Blob> = (0..70).map(|_| bodies.add(&vec![0; limits::INLINE_BYTES_MAX]).unwrap()).collect();
    assert_eq!(
        blobs.iter().filter(|blob| matches!(blob, Blob::File(_))).count(),
        70 - 64,
        "contents that do not fit the body go into files"
    );
    let endless = Request::Describe { function: "x".repeat(limits::MESSAGE_BYTES_MAX) };
    assert!(matches!(Outgoing::new(&endless, Attachments::default()), Err(WireError::TooLarge { .. })));
}

#[test]
fn a_frame_that_breaks_off_is_an_error() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"ATLC\x01\x00").unwrap();
    drop(ours);
    assert!(matches!(receive(&theirs), Err(WireError::Io(_))));
}

proptest! {
    #[test]
    fn frames_arrive_however_the_bytes_are_split(
        cuts in prop::collection::vec(1_usize..40, 0..40),
        name in ".{0,200}",
    ) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (mut copy, frames) = UnixStream::pair().unwrap();
        let request = Request::Remove { function: name };
        send(&copy, &request, Attachments::default());
        copy.flush().unwrap();
        drop(copy);
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut &frames, &mut bytes).unwrap();
        let mut rest = bytes.as_slice();
        let mut incoming = Incoming::default();
        let mut cuts = cuts.into_iter().cycle();
        let frame = loop {
            let count = cuts.next().unwrap_or(bytes.len()).min(rest.len());
            ours.write_all(&rest[..count]).unwrap();
            rest = &rest[count..];
            match incoming.step(&theirs).unwrap() {
                Progress::Done(frame) => break frame,
                Progress::More => {}
                Progress::Closed => panic!("it is open"),
            }
        };
        prop_assert_eq!(frame.decode::<Request>().unwrap().0, request);
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        begins_well in any::<bool>(),
    ) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        if begins_well {
            ours.write_all(b"ATLC\x01\x00\x00\x00").unwrap();
        }
        ours.write_all(&bytes).unwrap();
        drop(ours);
        if let Ok(Some(frame)) = receive(&theirs) {
            let _ = frame.decode::<Answer>();
        }
    }
}
