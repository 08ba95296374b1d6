//! Streams and events.

use super::device::HIGHEST;
use super::{at, entry_points, put};
use crate::options::UNITS_MAX;
use crate::runtime::{Runtime, fresh};
use crate::status::Status;
use crate::work::{Event, Marker, Work};
use atoll_hip_api::constants::{EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, STREAM_NON_BLOCKING};
use atoll_hip_api::types::*;
use std::sync::Arc;

/// The priority of a stream that is created without one.
const USUAL: c_int = 0;

entry_points! { STREAM:
    fn hipStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int) {
        if flags > STREAM_NON_BLOCKING {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        unsafe { open(stream, priority.clamp(HIGHEST, 1), None) }
    }

    fn hipExtStreamCreateWithCUMask(stream: *mut hipStream_t, words: u32, mask: *const u32) {
        if words == 0 || words > UNITS_MAX / 32 {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        let mask = (0..words as usize).map(|index| unsafe { at(mask, index) }).collect::<Result<Vec<u32>, Status>>()?;
        let units = Runtime::get()?.options.compute_units;
        if !(0..units).any(|unit| mask.get(unit as usize / 32).is_some_and(|word| word >> (unit % 32) & 1 == 1)) {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        unsafe { open(stream, USUAL, Some(mask)) }
    }

    fn hipExtStreamGetCUMask(stream: hipStream_t, words: u32, mask: *mut u32) {
        let own = Runtime::get()?.streams.get(stream)?.mask(stream.bits())?;
        if mask.is_null() || (words as usize) < own.len() {
            return Err(Status::InvalidValue);
        }
        for (index, word) in own.into_iter().enumerate() {
            // SAFETY: the array has at least as many words.
            unsafe { put(mask.add(index), word)? };
        }
        Ok(())
    }

    fn hipStreamDestroy(stream: hipStream_t) {
        Runtime::get()?.streams.remove(stream)?.close(stream.bits())
    }

    fn hipStreamSynchronize(stream: hipStream_t) {
        Runtime::get()?.streams.get(stream)?.synchronize(stream.bits())
    }

    fn hipStreamQuery(stream: hipStream_t) {
        Runtime::get()?.streams.get(stream)?.query(stream.bits())
    }

    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, _flags: c_uint) {
        let runtime = Runtime::get()?;
        let device = runtime.streams.get(stream)?;
        match runtime.events.get(event)?.marker() {
            Some(marker) => device.push(stream.bits(), Work::Wait(marker)),
            None => Ok(()),
        }
    }

    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) {
        if flags & !(1 | EVENT_DISABLE_TIMING | EVENT_INTERPROCESS) != 0 {
            return Err(Status::InvalidValue);
        }
        let runtime = Runtime::get()?;
        let (device, handle) = (runtime.current()?.ordinal, fresh());
        runtime.events.put(handle, Arc::new(Event::new(device, flags & EVENT_DISABLE_TIMING == 0)));
        // SAFETY: as the caller guarantees.
        unsafe { put(event, hipEvent_t::from_bits(handle)) }
    }

    fn hipEventDestroy(event: hipEvent_t) {
        Runtime::get()?.events.remove(event).map(drop)
    }

    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) {
        let runtime = Runtime::get()?;
        let (event, device) = (runtime.events.get(event)?, runtime.streams.get(stream)?);
        if event.device != device.ordinal {
            return Err(Status::InvalidHandle);
        }
        let marker = Arc::new(Marker::default());
        device.push(stream.bits(), Work::Record(marker.clone()))?;
        event.set(&marker);
        Ok(())
    }

    fn hipEventQuery(event: hipEvent_t) {
        let runtime = Runtime::get()?;
        let event = runtime.events.get(event)?;
        runtime.device(event.device as c_int)?.check()?;
        match event.marker() {
            Some(marker) if marker.at().is_none() => Err(Status::NotReady),
            _ => Ok(()),
        }
    }

    fn hipEventSynchronize(event: hipEvent_t) {
        let runtime = Runtime::get()?;
        let event = runtime.events.get(event)?;
        let device = runtime.device(event.device as c_int)?;
        event.marker().map_or(Ok(()), |marker| device.wait_for(&marker))
    }

    fn hipEventElapsedTime(milliseconds: *mut f32, start: hipEvent_t, stop: hipEvent_t) {
        let runtime = Runtime::get()?;
        let time = |event: hipEvent_t| {
            let event = runtime.events.get(event)?;
            let marker = event.marker().filter(|_| event.keeps_time).ok_or(Status::InvalidHandle)?;
            marker.at().ok_or(Status::NotReady)
        };
        let (start, stop) = (time(start)?, time(stop)?);
        let sign = if stop >= start { 1.0 } else { -1.0 };
        let between = stop.max(start).duration_since(stop.min(start));
        // SAFETY: as the caller guarantees.
        unsafe { put(milliseconds, (between.as_secs_f64() * 1e3 * sign) as f32) }
    }
}

/// Creates a stream on the current device.
///
/// # Safety
/// The pointer must be null or the address of a handle.
unsafe fn open(stream: *mut hipStream_t, priority: c_int, mask: Option<Vec<u32>>) -> Result<(), Status> {
    let runtime = Runtime::get()?;
    let (device, handle) = (runtime.current()?, fresh());
    device.open(handle, priority, mask)?;
    runtime.streams.put(handle, device.clone());
    // SAFETY: as the caller guarantees.
    unsafe { put(stream, hipStream_t::from_bits(handle)) }
}
