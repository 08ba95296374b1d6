//! Device memory that clients have exported, as the daemon uses it: through the executor that has
//! the device's context.
//!
//! ```text
//! daemon (ExecutorImports)      socket             executor (the thread atoll-import)
//! open, read, write ──────▶ Import, with ────────▶ opens the memory if it is not open,
//!                           the buffer             copies through the buffer
//!                   ◀────── Imported ◀────────────
//! close ──────────────────▶ CloseImport ─────────▶ closes it
//! ```
//!
//! The thread is separate because a driver takes milliseconds to open memory, and a copy of a large
//! tensor as long. One order is on its way at a time. Each order carries the handle, so the executor
//! that replaces a lost one opens the memory again.
//!
//! Closing memory may wait for running kernels. The daemon waits for the answers to imports, so memory
//! is closed when no import waits, or before an import under the same handle.

use super::supervisor::{Loss, Supervised};
use super::wire::{ImportWork, Order};
use atoll_device::shm::Region;
use atoll_device::{DeviceError, ImportError, ImportId, Importer, Imports, MemoryHandle};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Size of the buffer; larger transfers are split.
pub(super) const TRANSFER_BYTES: u64 = 4 << 20;

/// A device's imports. The executor changes when it is replaced.
#[derive(Debug)]
pub(super) struct ExecutorImports {
    ordinal: u32,
    executor: Mutex<Option<Arc<Supervised>>>,
    /// Held during an order. It owns the buffer, and counts the orders.
    turn: Mutex<Turn>,
    answer_within: Duration,
}

#[derive(Debug)]
struct Turn {
    buffer: Region,
    orders: u64,
}

impl ExecutorImports {
    pub(super) fn new(ordinal: u32, answer_within: Duration) -> Result<ExecutorImports, DeviceError> {
        let buffer = Region::create("atoll-import", TRANSFER_BYTES)
            .map_err(|source| DeviceError::Os { what: "create memory for transfers", source })?;
        let turn = Mutex::new(Turn { buffer, orders: 0 });
        Ok(ExecutorImports { ordinal, executor: Mutex::default(), turn, answer_within })
    }

    /// Sets the executor that opens the memory.
    pub(super) fn set_executor(&self, executor: &Arc<Supervised>) {
        *lock(&self.executor) = Some(executor.clone());
    }

    /// The executor, if it runs.
    fn executor(&self) -> Option<Arc<Supervised>> {
        lock(&self.executor).clone().filter(|executor| executor.loss().is_none() && executor.ready().is_some())
    }

    /// Sends an order and waits for the answer, the size of the memory.
    fn ask(&self, turn: &mut Turn, id: ImportId, handle: &MemoryHandle, work: ImportWork) -> Result<u64, ImportError> {
        let away = || ImportError::Unavailable("the device's executor is being replaced; try again".to_owned());
        let executor = self.executor().ok_or_else(away)?;
        let buffer = turn.buffer.as_fd().try_clone_to_owned();
        let buffer = buffer.map_err(|error| ImportError::Unavailable(format!("cannot share a buffer: {error}")))?;
        turn.orders += 1;
        let order = turn.orders;
        executor.send(Order::Import { order, import: id.0, handle: handle.0.to_vec(), work }, vec![buffer]);
        // The supervisor kills an executor that does not answer in time.
        let until = Instant::now() + self.answer_within * 2;
        loop {
            if let Some(answer) = executor.take_imported(order) {
                return answer;
            }
            if let Some(loss) = executor.loss() {
                return Err(lost(loss));
            }
            if !executor.wait_for_change(until) {
                return Err(ImportError::Unavailable("the device's executor does not answer".to_owned()));
            }
        }
    }
}

impl Imports for ExecutorImports {
    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn open(&self, id: ImportId, handle: &MemoryHandle) -> Result<u64, ImportError> {
        self.ask(&mut lock(&self.turn), id, handle, ImportWork::Open)
    }

    fn read(&self, id: ImportId, handle: &MemoryHandle, at: u64, to: &mut [u8]) -> Result<(), ImportError> {
        for (index, chunk) in to.chunks_mut(TRANSFER_BYTES as usize).enumerate() {
            let mut turn = lock(&self.turn);
            self.ask(&mut turn, id, handle, ImportWork::Read { at: place(at, index)?, bytes: chunk.len() as u64 })?;
            turn.buffer.read(0, chunk).map_err(|error| ImportError::Refused(error.to_string()))?;
        }
        Ok(())
    }

    fn write(&self, id: ImportId, handle: &MemoryHandle, at: u64, from: &[u8]) -> Result<(), ImportError> {
        for (index, chunk) in from.chunks(TRANSFER_BYTES as usize).enumerate() {
            let mut turn = lock(&self.turn);
            turn.buffer.write(0, chunk).map_err(|error| ImportError::Refused(error.to_string()))?;
            self.ask(&mut turn, id, handle, ImportWork::Write { at: place(at, index)?, bytes: chunk.len() as u64 })?;
        }
        Ok(())
    }

    fn close(&self, id: ImportId) {
        if let Some(executor) = self.executor() {
            executor.send(Order::CloseImport { import: id.0 }, Vec::new());
        }
    }
}

/// The offset of a chunk.
fn place(at: u64, index: usize) -> Result<u64, ImportError> {
    let place = (index as u64).checked_mul(TRANSFER_BYTES).and_then(|before| at.checked_add(before));
    place.ok_or_else(|| ImportError::Refused("the range is outside the memory".to_owned()))
}

fn lost(loss: &Loss) -> ImportError {
    ImportError::Unavailable(format!("the device's executor was lost: {loss}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An order for the executor's thread, with its descriptors.
pub(super) type ToImport = (Order, Vec<OwnedFd>);

/// The executor's thread: carries out orders until the relay ends, and passes the results of imports
/// to `answer`, with the numbers of their orders. Closes memory when no import waits.
pub(super) fn import_all(
    mut importer: Box<dyn Importer>,
    inbox: &Receiver<ToImport>,
    mut answer: impl FnMut(u64, Result<u64, DeviceError>),
) {
    let mut handles: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut to_close: VecDeque<(ImportId, Vec<u8>)> = VecDeque::new();
    loop {
        let next = if to_close.is_empty() {
            let Ok(next) = inbox.recv() else { return };
            Some(next)
        } else {
            inbox.try_recv().ok()
        };
        match next {
            Some((Order::Import { order, import, handle, work }, descriptors)) => {
                // The driver would give out the old mapping, even if its memory was freed since.
                to_close.retain(|(id, of)| {
                    let is_same = *of == handle;
                    if is_same {
                        importer.close(*id);
                    }
                    !is_same
                });
                answer(order, carry_out(&mut *importer, ImportId(import), &handle, work, descriptors));
                handles.insert(import, handle);
            }
            Some((Order::CloseImport { import }, _)) => {
                to_close.extend(handles.remove(&import).map(|handle| (ImportId(import), handle)));
            }
            // The relay passes on no other orders.
            Some(_) => {}
            None => {
                if let Some((id, _)) = to_close.pop_front() {
                    importer.close(id);
                }
            }
        }
    }
}

/// Opens memory if necessary, and copies. Returns the size of the memory.
fn carry_out(
    importer: &mut dyn Importer,
    id: ImportId,
    handle: &[u8],
    work: ImportWork,
    descriptors: Vec<OwnedFd>,
) -> Result<u64, DeviceError> {
    let invalid = || DeviceError::Unavailable("the daemon sent an invalid order for imported memory".to_owned());
    let handle = MemoryHandle(handle.try_into().map_err(|_| invalid())?);
    let [buffer] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| invalid())?;
    let all = importer.open(id, &handle)?;
    let (ImportWork::Read { at, bytes } | ImportWork::Write { at, bytes }) = work else { return Ok(all) };
    let buffer = Region::attach(buffer);
    let buffer = buffer.map_err(|source| DeviceError::Os { what: "map memory for transfers", source })?;
    let mut chunk = vec![0; bytes.min(TRANSFER_BYTES) as usize];
    if matches!(work, ImportWork::Read { .. }) {
        importer.read(id, at, &mut chunk)?;
        buffer.write(0, &chunk)?;
    } else {
        buffer.read(0, &mut chunk)?;
        importer.write(id, at, &chunk)?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Memory by handle. A handle of zeros is refused.
    #[derive(Debug, Default)]
    struct Device {
        memory: HashMap<ImportId, Vec<u8>>,
        /// What was opened and closed, in this order.
        calls: Arc<Mutex<Vec<(&'static str, u64)>>>,
    }

    impl Importer for Device {
        fn open(&mut self, id: ImportId, handle: &MemoryHandle) -> Result<u64, DeviceError> {
            if handle.0 == [0; 64] {
                return Err(DeviceError::Driver("no such memory".to_owned()));
            }
            if !self.memory.contains_key(&id) {
                lock(&self.calls).push(("open", id.0));
                self.memory.insert(id, vec![handle.0[0]; 100]);
            }
            Ok(100)
        }

        fn read(&mut self, id: ImportId, at: u64, to: &mut [u8]) -> Result<(), DeviceError> {
            let memory = &self.memory[&id];
            let outside = DeviceError::OutOfRange { at, bytes: to.len() as u64, memory_bytes: 100 };
            let from = memory.get(at as usize..).and_then(|rest| rest.get(..to.len())).ok_or(outside)?;
            to.copy_from_slice(from);
            Ok(())
        }

        fn write(&mut self, id: ImportId, at: u64, from: &[u8]) -> Result<(), DeviceError> {
            let memory = self.memory.get_mut(&id).expect("it is open");
            memory[at as usize..at as usize + from.len()].copy_from_slice(from);
            Ok(())
        }

        fn close(&mut self, id: ImportId) {
            lock(&self.calls).push(("close", id.0));
            self.memory.remove(&id);
        }
    }

    fn file(buffer: &Region) -> Vec<OwnedFd> {
        vec![buffer.as_fd().try_clone_to_owned().unwrap()]
    }

    #[test]
    fn orders_open_once_and_copy_through_the_buffer() {
        let (mut device, buffer, id) =
            (Device::default(), Region::create("test", TRANSFER_BYTES).unwrap(), ImportId(3));
        let mut ask = |work| carry_out(&mut device, id, &[7; 64], work, file(&buffer));
        assert_eq!(ask(ImportWork::Open).unwrap(), 100);
        assert_eq!(ask(ImportWork::Read { at: 10, bytes: 4 }).unwrap(), 100);
        let mut bytes = [0; 5];
        buffer.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7, 7, 7, 7, 0]);
        buffer.write(0, &[1, 2]).unwrap();
        ask(ImportWork::Write { at: 99, bytes: 1 }).unwrap();
        let outside = ask(ImportWork::Read { at: 99, bytes: 2 }).unwrap_err();
        assert!(outside.to_string().contains("2 bytes at 99"), "{outside}");
        assert!(ask(ImportWork::Read { at: u64::MAX, bytes: u64::MAX }).is_err());
        assert_eq!((device.memory[&id][98..].to_vec(), lock(&device.calls).len()), (vec![7, 1], 1));
    }

    #[test]
    fn orders_that_cannot_be_carried_out_are_refused() {
        let (mut device, buffer, id) =
            (Device::default(), Region::create("test", TRANSFER_BYTES).unwrap(), ImportId(3));
        let mut ask = |handle: &[u8], files| carry_out(&mut device, id, handle, ImportWork::Open, files).unwrap_err();
        assert!(ask(&[0; 64], file(&buffer)).to_string().contains("no such memory"));
        assert!(ask(&[7; 63], file(&buffer)).to_string().contains("invalid order"));
        assert!(ask(&[7; 64], Vec::new()).to_string().contains("invalid order"));
        assert!(device.memory.is_empty());
    }

    #[test]
    fn imports_go_before_closing_unless_the_handle_is_the_same() {
        let (device, buffer) = (Device::default(), Region::create("test", TRANSFER_BYTES).unwrap());
        let (calls, (orders, inbox)) = (device.calls.clone(), channel());
        let open = |order, handle| {
            let order = Order::Import { order, import: order, handle: vec![handle; 64], work: ImportWork::Open };
            orders.send((order, file(&buffer))).unwrap();
        };
        let close = |import| orders.send((Order::CloseImport { import }, Vec::new())).unwrap();
        open(1, 7);
        close(1);
        open(2, 0);
        close(2);
        open(3, 8);
        open(4, 7);
        drop(orders);
        let mut answers = Vec::new();
        import_all(Box::new(device), &inbox, |order, done| answers.push((order, done.is_ok())));
        assert_eq!(answers, [(1, true), (2, false), (3, true), (4, true)]);
        assert_eq!(*lock(&calls), [("open", 1), ("open", 3), ("close", 1), ("open", 4), ("close", 2)]);
    }
}
