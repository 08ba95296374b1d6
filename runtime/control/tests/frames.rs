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

/// The head of a frame.
fn head(magic: &[u8; 4], version: u16, files: u16, message_bytes: u32, body_bytes: u32) -> Vec<u8> {
    let numbers = [message_bytes.to_le_bytes(), body_bytes.to_le_bytes()].concat();
    [&magic[..], &version.to_le_bytes(), &files.to_le_bytes(), &numbers].concat()
}

/// The result of bytes after which the peer closes the connection.
fn result(bytes: &[u8]) -> String {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(bytes).unwrap();
    drop(ours);
    match receive(&theirs) {
        Ok(Some(frame)) => format!("a frame with {} files", frame.files()),
        Ok(None) => "closed".into(),
        Err(error) => error.to_string(),
    }
}

/// The last number that is accepted, and the first one that is not. A frame that is accepted and
/// has no further bytes ends too early.
#[test]
fn the_head_of_a_frame_has_limits() {
    let (files, message, body) =
        (limits::FILES_MAX as u16, limits::MESSAGE_BYTES_MAX as u32, limits::BODY_BYTES_MAX as u32);
    let early = "the connection ended within a frame";
    let foreign = "the peer does not speak Atoll's control protocol";
    for (head, expected) in [
        (head(b"ATLC", 1, files, message, body), early),
        (head(b"ATLC", 1, files + 1, message, body), "a frame has 129 files; the limit is 128"),
        (head(b"ATLC", 1, files, message + 1, 0), "a frame has 4194305 bytes of message; the limit is 4194304"),
        (head(b"ATLC", 1, files, 0, body + 1), "a frame has 4194305 bytes of body; the limit is 4194304"),
        (head(b"ATLC", 1, 0, u32::MAX, 0), "a frame has 4294967295 bytes of message; the limit is 4194304"),
        (head(b"ATLC", 0, 0, 0, 0), "the peer uses version 0 of the control protocol"),
        (head(b"ATLC", 2, 0, 0, 0), "the peer uses version 2 of the control protocol"),
        (head(b"ATLC", 256, 0, 0, 0), "the peer uses version 256 of the control protocol"),
        (head(b"BTLC", 1, 0, 0, 0), foreign),
        (head(b"ATLD", 1, 0, 0, 0), foreign),
        (head(b"ATLC", 1, 0, 0, 0), "a frame with 0 files"),
        (head(b"ATLC", 1, 1, 0, 0), "a frame announces 1 files, but has 0"),
        (Vec::new(), "closed"),
        (b"A".to_vec(), early),
        (head(b"ATLC", 1, 0, 0, 0)[..15].to_vec(), early),
        ([head(b"ATLC", 1, 0, 2, 1), b"{}".to_vec()].concat(), early),
        ([head(b"ATLC", 1, 0, 2, 1), b"{} ".to_vec()].concat(), "a frame with 0 files"),
    ] {
        let found = result(&head);
        assert!(found.contains(expected), "expected `{expected}`, found `{found}`");
    }
}

#[test]
fn files_that_a_frame_does_not_announce_are_refused() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let file = Sealed::of("test", b"x").unwrap();
    let outcome = |announced: u16, sent: usize| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let files = vec![std::os::fd::AsFd::as_fd(&file); sent];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let head = head(b"ATLC", 1, announced, 0, 0);
        sendmsg(&ours, &[std::io::IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL).unwrap();
        receive(&theirs).map(|frame| frame.unwrap().files()).map_err(|error| error.to_string())
    };
    assert_eq!(outcome(2, 2), Ok(2));
    for (announced, sent) in [(1, 2), (2, 1), (0, 1)] {
        assert_eq!(outcome(announced, sent), Err(format!("a frame announces {announced} files, but has {sent}")));
    }
}

#[test]
fn contents_are_inline_up_to_a_limit_and_files_are_not_taken_for_others() {
    let mut attachments = Attachments::default();
    let most = limits::INLINE_BYTES_MAX;
    let sealed = |bytes: usize| Sealed::of("test", &vec![3; bytes]).unwrap();
    assert_eq!(attachments.add(&vec![1; most]).unwrap(), Blob::Inline { offset: 0, bytes: most as u32 });
    assert_eq!(
        attachments.add_sealed(&sealed(most)).unwrap(),
        Blob::Inline { offset: most as u32, bytes: most as u32 }
    );
    assert_eq!(attachments.add(&vec![1; most + 1]).unwrap(), Blob::File(0));
    assert_eq!(attachments.add_sealed(&sealed(most + 1)).unwrap(), Blob::File(1));
    assert_eq!(attachments.files(), 2);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let sender = std::thread::spawn(move || send(&ours, &Request::Objects, attachments));
    let (_, mut received) = receive(&theirs).unwrap().unwrap().decode::<Request>().unwrap();
    sender.join().unwrap();
    let end = 2 * most as u32;
    let mut inline = |offset, bytes| received.take(Blob::Inline { offset, bytes }).map(|content| content.bytes());
    assert!(matches!(inline(0, end), Ok(bytes) if bytes == u64::from(end)));
    assert!(matches!(inline(end, 0), Ok(0)));
    for (offset, bytes) in [(0, end + 1), (1, end), (end, 1), (end + 1, 0), (u32::MAX, u32::MAX)] {
        assert!(matches!(inline(offset, bytes), Err(WireError::NoContent)), "{offset} {bytes}");
    }
    let taken = received.take(Blob::File(1)).unwrap();
    assert_eq!((received.files(), taken.bytes()), (1, most as u64 + 1));
    assert!(matches!(received.take(Blob::File(1)), Err(WireError::NoContent)));
    assert!(matches!(received.take(Blob::File(2)), Err(WireError::NoContent)));
    // A file that can change is memory of a ring, and never a content.
    let mut attachments = Attachments::default();
    let index = attachments.add_memory(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    assert!(matches!(attachments.take(Blob::File(index.unwrap())), Err(WireError::NotSealed(_))));
}

#[test]
fn a_message_may_have_exactly_the_largest_size() {
    let of = |bytes: usize| Request::Describe { function: "x".repeat(bytes) };
    let around = serde_json::to_vec(&of(0)).unwrap().len();
    let most = limits::MESSAGE_BYTES_MAX - around;
    assert!(Outgoing::new(&of(most), Attachments::default()).is_ok());
    let error = Outgoing::new(&of(most + 1), Attachments::default()).expect_err("one byte too long").to_string();
    assert_eq!(error, "a frame has 4194305 bytes of message; the limit is 4194304");
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
