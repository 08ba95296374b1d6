//! The functions of the header.

use crate::status::{Failed, guarded, message};
use crate::types::{Answer, Call, Options, Tensor, text};
use atoll_client::{Client, Ring, RingOptions, RingTicket, Tenant, default_socket};
use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::time::Duration;

/// The object behind a pointer of the caller.
///
/// # Safety
/// The pointer is NULL, or one that this library returned and that was not freed. For `'a` the
/// caller uses it nowhere else.
unsafe fn borrowed<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failed> {
    // SAFETY: the caller guarantees it.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failed::argument(format!("{what} is NULL")))
}

/// Checks the place for a result.
fn place<T>(place: *mut T, what: &str) -> Result<*mut T, Failed> {
    if place.is_null() { Err(Failed::argument(format!("the place for {what} is NULL"))) } else { Ok(place) }
}

/// # Safety
/// As the header says: `options` is NULL or valid, and `ring` is NULL or can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_ring_open(options: *const Options, ring: *mut *mut Ring) -> c_int {
    guarded(|| {
        let place = place(ring, "the ring")?;
        // SAFETY: the caller guarantees it, for the options and their texts.
        let (options, socket, tenant) = unsafe {
            let options = options.as_ref();
            let socket = options.map(|options| text(options.socket, "the socket")).transpose()?.flatten();
            let tenant = options.map(|options| text(options.tenant, "the tenant")).transpose()?.flatten();
            (options, socket, tenant)
        };
        let mut wanted = RingOptions::default();
        if let Some(given) = options {
            wanted.slots = if given.slots == 0 { wanted.slots } else { given.slots };
            wanted.arena_bytes = if given.arena_bytes == 0 { wanted.arena_bytes } else { given.arena_bytes };
            wanted.spin = Duration::from_micros(given.spin_us.into());
            wanted.daemon_spin = Duration::from_micros(given.daemon_spin_us.into());
        }
        let socket = socket.map_or_else(default_socket, PathBuf::from);
        let tenant = tenant.map(str::parse::<Tenant>).transpose();
        let tenant = tenant.map_err(|error| Failed::argument(error.to_string()))?;
        let ring = Box::new(Client::connect_as(&socket, tenant)?.open_ring(&wanted)?);
        // SAFETY: it is not NULL, and the caller guarantees that it can be written.
        unsafe { place.write(Box::into_raw(ring)) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `ring` is NULL or an open ring, which is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_ring_close(ring: *mut Ring) {
    guarded(|| {
        if !ring.is_null() {
            // SAFETY: `atoll_ring_open` made it with `Box::into_raw`; the caller guarantees the rest.
            drop(unsafe { Box::from_raw(ring) });
        }
        Ok(())
    });
}

/// # Safety
/// As the header says: `ring` is an open ring.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_ring_ping(ring: *mut Ring) -> c_int {
    // SAFETY: the caller guarantees it.
    guarded(|| Ok(unsafe { borrowed(ring, "the ring") }?.ping()?))
}

/// # Safety
/// As the header says: `ring` is an open ring, `call` is valid, and `answer` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_ring_infer(ring: *mut Ring, call: *const Call, answer: *mut *mut Answer) -> c_int {
    guarded(|| {
        let place = place(answer, "the answer")?;
        // SAFETY: the caller guarantees it, for both pointers and the members of the call.
        let (ring, call) = unsafe {
            let call = call.as_ref().ok_or_else(|| Failed::argument("the call is NULL"))?;
            (borrowed(ring, "the ring")?, call.request()?)
        };
        let answer = Box::new(Answer::new(ring.infer(&call)?));
        // SAFETY: it is not NULL, and the caller guarantees that it can be written.
        unsafe { place.write(Box::into_raw(answer)) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `ring` is an open ring, `call` is valid, and `ticket` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_ring_send(ring: *mut Ring, call: *const Call, ticket: *mut u32) -> c_int {
    guarded(|| {
        let place = place(ticket, "the ticket")?;
        // SAFETY: the caller guarantees it, for both pointers and the members of the call.
        let (ring, call) = unsafe {
            let call = call.as_ref().ok_or_else(|| Failed::argument("the call is NULL"))?;
            (borrowed(ring, "the ring")?, call.request()?)
        };
        let ticket = ring.send(&call)?;
        // SAFETY: it is not NULL, and the caller guarantees that it can be written.
        unsafe { place.write(ticket.number()) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `ring` is an open ring, and `answer` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_ring_receive(ring: *mut Ring, ticket: u32, answer: *mut *mut Answer) -> c_int {
    guarded(|| {
        let place = place(answer, "the answer")?;
        // SAFETY: the caller guarantees it.
        let ring = unsafe { borrowed(ring, "the ring") }?;
        let answer = Box::new(Answer::new(ring.receive(RingTicket::of_number(ticket))?));
        // SAFETY: it is not NULL, and the caller guarantees that it can be written.
        unsafe { place.write(Box::into_raw(answer)) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `answer` is NULL or an answer that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_answer_count(answer: *const Answer) -> usize {
    // SAFETY: the caller guarantees it.
    unsafe { answer.as_ref() }.map_or(0, Answer::count)
}

/// # Safety
/// As the header says: `answer` is an answer that was not freed, and `output` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_answer_output(answer: *const Answer, index: usize, output: *mut Tensor) -> c_int {
    guarded(|| {
        // SAFETY: the caller guarantees it.
        let answer = unsafe { answer.as_ref() }.ok_or_else(|| Failed::argument("the answer is NULL"))?;
        let found = answer.output(index).ok_or_else(|| {
            Failed::argument(format!("there is no output {index}; the answer has {}", answer.count()))
        })?;
        let place = place(output, "the output")?;
        // SAFETY: it is not NULL, and the caller guarantees that it can be written.
        unsafe { place.write(found) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `answer` is NULL or an answer that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_answer_version(answer: *const Answer) -> *const c_char {
    // SAFETY: the caller guarantees it.
    unsafe { answer.as_ref() }.map_or(std::ptr::null(), |answer| answer.version.as_ptr())
}

/// # Safety
/// As the header says: `answer` is NULL or an answer, which is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn atoll_answer_free(answer: *mut Answer) {
    if !answer.is_null() {
        // SAFETY: this library made it with `Box::into_raw`; the caller guarantees the rest.
        drop(unsafe { Box::from_raw(answer) });
    }
}

#[unsafe(no_mangle)]
extern "C" fn atoll_ring_error() -> *const c_char {
    message()
}
