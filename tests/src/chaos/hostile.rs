//! The hostile client. Its native code attacks its executor and the daemon, and it misuses each way
//! into the daemon. The daemon may refuse an attack or end the executor, but it must answer.

use super::Request;
use super::client::{Failure, Process};
use atoll_client::{Call, ClientError, DataType, Deploy, RefusalKind, Tensor};
use atoll_core::rng::Rng;
use atoll_device::cpus;
use atoll_hostile_client::control::half_a_frame;
use atoll_hostile_client::hold::{HALF_A_HEAD, body_that_does_not_end, open, trickle};
use atoll_hostile_client::http2::{Flood, Lasting};
use atoll_hostile_executor::{Attack, HOW_WORDS, Layout};
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Pause between two steps of an attack, so that the daemon sees the first one.
const STEP: Duration = Duration::from_millis(10);

/// Deadline of a call whose native code may not end.
const DEADLINE: Duration = Duration::from_secs(1);

/// A system call that executors must not make: `getppid`.
const FORBIDDEN: Attack = Attack::Call { number: 110, arguments: [0; 6] };

/// The name of the bundle that is a bomb, beside the bundle of `grind`.
pub const BOMB: &str = "bomb.kg";

/// The call of `hostile` that runs an attack.
pub fn call_of(attack: &Attack, layout: &Layout) -> Call {
    let how = attack.how(layout).iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = attack.text();
    Call::of("hostile")
        .input("how", Tensor { datatype: DataType::Uint64, shape: vec![HOW_WORDS as i64], bytes: how })
        .input("text", Tensor { datatype: DataType::Uint8, shape: vec![text.len() as i64], bytes: text })
}

/// An attack of native code. Random words in the rings are not among them: what they do to the
/// executor's own counts is no concern of others.
fn drawn(rng: &mut Rng, layout: &Layout) -> Attack {
    let ms = |rng: &mut Rng, most| Duration::from_millis(rng.below(most));
    match rng.below(10) {
        0 => Attack::Nothing,
        1 => FORBIDDEN,
        2 => Attack::Windows { window: 2 << 20, bytes: 96 << 20 },
        3 => Attack::Send { times: 1 + rng.below(1000), text: "\"Shown\"".into() },
        4 => Attack::SendFile { text: "\"Shown\"".into() },
        5 => Attack::Store { at: layout.busy_at, value: u64::MAX / 2 },
        6 => Attack::Forge { time: ms(rng, 1000) },
        7 => Attack::Spin { time: ms(rng, 100) },
        8 => Attack::Signal { number: [6, 11, 15][rng.below(3) as usize] },
        _ => Attack::Ring { times: rng.below(10_000) },
    }
}

impl Process {
    /// Makes one attack. The first one of a process ends its executor.
    pub(super) fn attack(&mut self) -> io::Result<()> {
        if self.requests == 0 {
            return self.run_native(FORBIDDEN);
        }
        if self.rng.one_in(2) {
            let layout = self.layout()?;
            let attack = drawn(&mut self.rng, &layout);
            return self.run_native(attack);
        }
        match self.rng.below(6) {
            0 => self.hold("bodies that hardly arrive", &body_that_does_not_end("/v2/models/grind/infer", 128 << 20)),
            1 => self.hold("heads that do not end", HALF_A_HEAD),
            2 => self.hold("silent connections", b""),
            3 => self.flood(),
            4 => self.hold_seats(),
            _ => self.deploy_a_bomb(),
        }
    }

    fn layout(&mut self) -> io::Result<Layout> {
        if self.layout.is_none() {
            // One compute unit for each CPU that the daemon may use.
            let found = Layout::of_host(cpus::allowed().len() as u32);
            self.layout = Some(found.map_err(|error| io::Error::other(error.to_string()))?);
        }
        Ok(self.layout.clone().expect("just found"))
    }

    fn run_native(&mut self, attack: Attack) -> io::Result<()> {
        let call = call_of(&attack, &self.layout()?).deadline(DEADLINE);
        self.ask(Request::Run { functions: 1, keep: None }, |this| Ok(this.client()?.invoke(call).map(drop)?)).map(drop)
    }

    fn misuse(&mut self, what: &str, attack: impl FnOnce(&mut Process) -> Result<(), Failure>) -> io::Result<()> {
        self.ask(Request::Attack(what.into()), attack).map(drop)
    }

    /// Holds connections to the HTTP port, on which it sends these bytes and then hardly anything.
    fn hold(&mut self, what: &str, bytes: &[u8]) -> io::Result<()> {
        self.misuse(what, |this| {
            let count = 10 + this.rng.below(90) as usize;
            let mut connections = open(&this.address("http")?, count, bytes)?;
            for _ in 0..3 {
                std::thread::sleep(STEP);
                trickle(&mut connections);
            }
            Ok(())
        })
    }

    /// Floods the gRPC port with frames, or holds requests there.
    fn flood(&mut self) -> io::Result<()> {
        self.misuse("frames", |this| {
            let address = this.address("grpc")?;
            if this.rng.one_in(2) {
                let flood = Flood::ALL[this.rng.below(Flood::ALL.len() as u64) as usize];
                flood.run(&address, 500)?;
                return Ok(());
            }
            let lasting = Lasting::ALL[this.rng.below(Lasting::ALL.len() as u64) as usize];
            let mut held = lasting.open(&address, 1 + this.rng.below(50) as u32)?;
            std::thread::sleep(STEP);
            held.trickle();
            Ok(())
        })
    }

    /// Holds places of the control socket, with nothing, with half a frame and its descriptors, or
    /// with what is no frame. All clients are the same user, so it leaves most of the user's places.
    fn hold_seats(&mut self) -> io::Result<()> {
        self.misuse("seats", |this| {
            let seat = |at| half_a_frame(&this.orders.socket, if at < 4 { 8 } else { 0 });
            let seats: anyhow::Result<Vec<UnixStream>> = (0..30).map(seat).collect();
            let seats = seats.map_err(|error| io::Error::other(error.to_string()))?;
            let noise = this.rng.next_u64().to_le_bytes();
            // The daemon may have closed it already.
            let _ = (&seats[0]).write_all(&noise.repeat(64));
            std::thread::sleep(STEP);
            Ok(())
        })
    }

    fn deploy_a_bomb(&mut self) -> io::Result<()> {
        self.misuse("a bomb", |this| {
            let bomb = this.orders.bundle.with_file_name(BOMB);
            let how = Deploy { name: Some("bomb".into()), private: true, ..Deploy::default() };
            match this.client()?.deploy(&bomb, &how) {
                Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::BadRequest => Ok(()),
                Err(error) => Err(error.into()),
                Ok(_) => Err(Failure::Wrong("it was deployed".into())),
            }
        })
    }
}
