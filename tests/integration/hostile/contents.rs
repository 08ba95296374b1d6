//! Contents on the control socket that are large without taking memory of the peer, and files of
//! answers that the peer keeps.

use super::{Others, beside, start};
use crate::cancel::metric;
use crate::control::Setup;
use anyhow::{Context, Result, bail, ensure};
use atoll_control::{
    Answer, Attachments, Blob, Deploy, Frame, Incoming, Outgoing, Progress, Put, Refusal, RefusalKind, Request,
};
use atoll_hostile_client::bombs::{CLAIMS_BYTES, claims};
use atoll_tests::full;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::pwrite;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The size of the sparse files: the largest that the daemon accepts.
const LARGE: u64 = 16 << 30;

/// A connection to the control socket that may send anything.
struct Peer(UnixStream);

impl Peer {
    fn of(setup: &Setup, tenant: &str) -> Result<Peer> {
        let peer = Peer(UnixStream::connect(setup.path("atoll.sock"))?);
        let hello = Request::Hello { tenant: Some(tenant.parse()?) };
        ensure!(matches!(peer.ask(&hello, Attachments::default())?.0, Answer::Welcome { .. }));
        Ok(peer)
    }

    fn ask(&self, request: &Request, attachments: Attachments) -> Result<(Answer, Attachments)> {
        let mut outgoing = Outgoing::new(request, attachments)?;
        while let Progress::More = outgoing.step(&self.0)? {}
        let mut incoming = Incoming::default();
        let frame: Frame = loop {
            match incoming.step(&self.0)? {
                Progress::More => {}
                Progress::Done(frame) => break frame,
                Progress::Closed => bail!("closed"),
            }
        };
        Ok(frame.decode()?)
    }

    /// The answer to a request that refers to a file.
    fn send(&self, request: &Request, file: &OwnedFd) -> Result<Answer> {
        let mut attachments = Attachments::default();
        attachments.add_memory(file)?;
        Ok(self.ask(request, attachments)?.0)
    }

    fn deploy(&self, file: &OwnedFd) -> Result<Answer> {
        let deploy = Deploy {
            name: Some("sparse".into()),
            class: None,
            private: true,
            device: None,
            signature: None,
            progress: false,
            bundle: Blob::File(0),
        };
        self.send(&Request::Deploy(deploy), file)
    }

    fn put(&self, file: &OwnedFd) -> Result<Answer> {
        self.send(&Request::Put(Put { form: None, class: None, blob: Blob::File(0) }), file)
    }
}

/// A refusal of this kind, whose message says this.
fn is_refused(answer: &Answer, wanted: RefusalKind, says: &str) -> Result<()> {
    let Answer::Refused(Refusal { kind, message }) = answer else { bail!("not refused: {answer:?}") };
    ensure!(*kind == wanted && message.contains(says), "{kind:?}: {message}");
    Ok(())
}

/// A sealed memory file of so many bytes with nothing but this at its end.
fn sparse(bytes: u64, tail: &[u8]) -> Result<OwnedFd> {
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    pwrite(&file, tail, bytes - tail.len() as u64)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file)
}

/// Resident memory of the daemon in bytes.
fn memory(setup: &Setup) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", setup.daemon.process().id()))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("its resident memory")?;
    Ok(resident.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}

/// Runs an attack with a sparse file. The daemon takes no memory for it.
fn takes_nothing(setup: &Setup, file: &OwnedFd, others: &Others, attack: impl FnOnce() -> Result<()>) -> Result<()> {
    let (blocks, before) = (fstat(file)?.st_blocks, memory(setup)?);
    attack()?;
    ensure!(fstat(file)?.st_blocks == blocks, "pages of the file were made");
    let after = memory(setup)?;
    ensure!(after < before + (256 << 20), "{after} bytes are resident, {before} before");
    others.go_on(2)
}

#[test]
fn sparse_bundles_and_the_claims_in_them_take_no_memory_of_the_daemon() -> Result<()> {
    let setup = start(&[], "[tenant.small]\nbundle_bytes = \"1M\"\n")?;
    let state = setup.path("atoll");
    beside("sparse bundles", &setup, |others| {
        let stored = crate::quotas::files(&state)?;
        for (tail, says) in [
            (Vec::new(), "not a zip archive"),
            (claims(LARGE, 365_000_000, LARGE - CLAIMS_BYTES), "365000000 members, at most 512 are allowed"),
            (claims(LARGE, 512, LARGE - CLAIMS_BYTES), "its directory has"),
        ] {
            let file = sparse(LARGE, &tail)?;
            takes_nothing(&setup, &file, others, || {
                is_refused(&Peer::of(&setup, "large")?.deploy(&file)?, RefusalKind::BadRequest, says)?;
                // Beyond its quota, a bundle is not even opened.
                let says = "of the bundle bytes of tenant `small`, 0 of 1048576 are used";
                is_refused(&Peer::of(&setup, "small")?.deploy(&file)?, RefusalKind::Quota, says)
            })?;
        }
        ensure!(crate::quotas::files(&state)? == stored, "nothing is written");
        let denied = metric(&setup.daemon, "atoll_denied_requests_total{reason=\"deployment\"}")?;
        ensure!(denied == 3.0, "{denied}");
        Ok(())
    })
}

/// If the daemon read them first, each would take it ten seconds.
#[test]
fn sparse_objects_beyond_a_quota_are_refused_unread() -> Result<()> {
    let setup = start(&[], "[tenant.small]\nobject_bytes = \"1M\"\n")?;
    beside("sparse objects", &setup, |others| {
        let file = sparse(LARGE, b"")?;
        let count: u32 = if full() { 1_000 } else { 100 };
        takes_nothing(&setup, &file, others, || {
            let peer = Peer::of(&setup, "small")?;
            for _ in 0..count {
                let says = "of object bytes, 0 of 1048576 are used";
                is_refused(&peer.put(&file)?, RefusalKind::Quota, says)?;
            }
            Ok(())
        })?;
        ensure!(metric(&setup.daemon, "atoll_denied_requests_total{reason=\"objects\"}")? == f64::from(count));
        // They are in the account of the tenant.
        ensure!(crate::quotas::refused_requests(&setup, "small")? == u64::from(count));
        Ok(())
    })
}

/// The peer keeps the memory files of objects. It gets no more beyond a limit, until it closes some.
#[test]
fn memory_files_of_answers_that_a_client_keeps_are_limited() -> Result<()> {
    // Nothing stays in memory, so that the daemon makes a file for each answer.
    let setup = start(&["--object-memory", "0"], "")?;
    let bytes = 520 << 20;
    let Answer::Stored { digest } = Peer::of(&setup, "keeper")?.put(&sparse(bytes, b"")?)? else { bail!("stored") };
    let get = |peer: &Peer| peer.ask(&Request::Get { digest }, Attachments::default());
    beside("kept files", &setup, |others| {
        let peer = Peer::of(&setup, "keeper")?;
        let (answer, kept) = get(&peer)?;
        ensure!(matches!(answer, Answer::Object { .. }) && kept.files() == 1, "{answer:?}");
        for _ in 0..3 {
            let says = format!("hold 1 files of earlier answers with {bytes} bytes");
            is_refused(&get(&peer)?.0, RefusalKind::Quota, &says)?;
        }
        ensure!(metric(&setup.daemon, "atoll_denied_requests_total{reason=\"objects\"}")? == 3.0);
        others.go_on(2)?;
        drop(kept);
        ensure!(matches!(get(&peer)?.0, Answer::Object { .. }), "its file is closed");
        Ok(())
    })
}
