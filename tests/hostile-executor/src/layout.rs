//! The layout of the memory that an executor shares with the daemon.
//!
//! The layout is private to `atoll-device`. An attacker who has the program can find it out, and so
//! does this module: it uses a link of the same shape and looks which words change.

use anyhow::{Context, Result};
use atoll_core::{DeviceOffset, Epoch, LaunchId};
use atoll_device::link::{Link, LinkShape};
use atoll_device::process::Plan;
use atoll_device::record::{Command, Completion};
use atoll_device::{AddressSlots, LaunchRecord, LaunchStatus, ModuleId};
use atoll_device_host::HostConfig;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

/// A value that no other word has.
const MARK: u64 = 0x5eed_c0de_0000_0001;

/// A ring: its producer's index, and its first slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    pub(crate) index_at: u64,
    pub(crate) slot_at: u64,
}

/// Places in the shared memory, as offsets in bytes.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Size of the whole memory.
    pub bytes: u64,
    /// The time that compute units were busy, as the executor reports it.
    pub busy_at: u64,
    /// The number of reports that the executor announces.
    pub reports_at: u64,
    pub(crate) stop_words_at: u64,
    /// Rings of the first device queue.
    pub(crate) commands: RingPlace,
    pub(crate) completions: RingPlace,
    /// Distance from the rings of a queue to those of the next.
    pub(crate) stride: u64,
    /// Slots of a ring.
    pub(crate) slots: u64,
}

impl Layout {
    /// The layout of a host device of the default configuration, with this many compute units.
    ///
    /// # Errors
    /// If there is no such device, or memory cannot be shared.
    pub fn of_host(compute_units: u32) -> Result<Layout> {
        let config = HostConfig { compute_units, ..HostConfig::default() };
        Layout::of(config.plan()?.link)
    }

    fn of(shape: LinkShape) -> Result<Layout> {
        let link = Link::create(shape)?;
        let first = |change: &dyn Fn()| -> Result<u64> {
            let changes = changes(&link, change)?;
            Ok(changes.first().context("a word changes")?.0)
        };
        let [(commands, completions), (next, _)] = [rings(&link, 0)?, rings(&link, 1)?];
        Ok(Layout {
            bytes: words(&link)?.len() as u64 * 8,
            busy_at: first(&|| link.add_busy(MARK))?,
            reports_at: first(&|| link.note_report())?,
            stop_words_at: first(&|| link.stop_word(0).store(1, SeqCst))?,
            commands,
            completions,
            stride: next.index_at - commands.index_at,
            slots: u64::from(shape.capacity.next_power_of_two()),
        })
    }

    /// The bytes of all rings, which lie after the control words.
    pub fn rings(&self) -> std::ops::Range<u64> {
        self.commands.index_at..self.bytes
    }
}

/// The memory of a link, as words.
fn words(link: &Link) -> Result<Vec<u64>> {
    let bytes = usize::try_from(rustix::fs::fstat(link.as_fd())?.st_size)?;
    let mut memory = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        done += match rustix::io::pread(link.as_fd(), &mut memory[done..], done as u64)? {
            0 => anyhow::bail!("the memory of a link ends after {done} bytes"),
            read => read,
        };
    }
    Ok(memory.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// The words that a change touches: their offsets and new values, in the order of the offsets.
fn changes(link: &Link, change: impl FnOnce()) -> Result<Vec<(u64, u64)>> {
    let before = words(link)?;
    change();
    let after = words(link)?;
    let pairs = before.iter().zip(after).enumerate();
    Ok(pairs.filter(|(_, (before, after))| *before != after).map(|(at, (_, after))| (at as u64 * 8, after)).collect())
}

/// The rings of a queue: launches and completions.
fn rings(link: &Link, queue: u32) -> Result<(RingPlace, RingPlace)> {
    let (mut commands, _) = link.engine_ends(queue);
    let (_, mut completions) = link.device_ends(queue);
    let record = LaunchRecord {
        launch: LaunchId(MARK),
        module: ModuleId(0),
        kernel: 0,
        grid: [0; 3],
        shared_bytes: 0,
        address_slots: AddressSlots::NONE,
        evicted_word: DeviceOffset(0),
        epoch_word: DeviceOffset(0),
        epoch: Epoch(0),
        preemptible: 0,
        may_run_again: 0,
        followed: 0,
    };
    let mut pushed = Ok(());
    let launch = changes(link, || pushed = commands.push_with(|slot| Command::put(slot, &record, &[])))?;
    pushed?;
    let mut pushed = Ok(());
    let completion = Completion::unrun(LaunchId(MARK), LaunchStatus::Complete).to_words();
    let completion = changes(link, || pushed = completions.push(&completion))?;
    pushed?;
    let place = |changes: &[(u64, u64)]| -> Result<RingPlace> {
        let index_at = changes.first().context("the index changes")?.0;
        let slot_at = changes.iter().find(|(_, value)| *value == MARK).context("the launch is in its slot")?.0;
        Ok(RingPlace { index_at, slot_at })
    };
    Ok((place(&launch)?, place(&completion)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_found() {
        let layout = Layout::of_host(2).unwrap();
        let Layout { commands, completions, .. } = &layout;
        assert!(layout.busy_at < layout.reports_at && layout.reports_at < layout.stop_words_at, "{layout:?}");
        assert!(layout.stop_words_at < commands.index_at && commands.slot_at < completions.index_at, "{layout:?}");
        assert!(completions.slot_at < commands.index_at + layout.stride && layout.rings().end == layout.bytes);
        assert_eq!((commands.slot_at - commands.index_at, completions.slot_at - completions.index_at), (256, 256));
    }
}
