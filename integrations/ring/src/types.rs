//! The types of the header.

use crate::status::Failed;
use atoll_client::{DataType, Parameters, RingAnswer, RingCall, RingInput};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

/// `atoll_ring_options`
#[repr(C)]
pub(crate) struct Options {
    pub(crate) socket: *const c_char,
    pub(crate) tenant: *const c_char,
    pub(crate) slots: u32,
    pub(crate) spin_us: u32,
    pub(crate) daemon_spin_us: u32,
    pub(crate) arena_bytes: u64,
}

/// `atoll_tensor`
#[repr(C)]
pub(crate) struct Tensor {
    name: *const c_char,
    datatype: i32,
    rank: u32,
    shape: *const i64,
    data: *const c_void,
    bytes: u64,
}

/// `atoll_call`
#[repr(C)]
pub(crate) struct Call {
    model: *const c_char,
    version: *const c_char,
    id: *const c_char,
    parameters: *const c_char,
    inputs: *const Tensor,
    input_count: u32,
    output_count: u32,
    outputs: *const *const c_char,
}

/// `atoll_answer`
pub(crate) struct Answer {
    pub(crate) version: CString,
    names: Vec<CString>,
    answer: RingAnswer,
}

/// A text of the caller; `None` for NULL.
///
/// # Safety
/// The pointer is NULL, or points to a text that ends in a zero byte and stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Failed> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL; the caller guarantees the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failed::argument(format!("{what} is not UTF-8")))
}

/// An array of the caller. NULL is allowed if it has no elements.
///
/// # Safety
/// The pointer points to `count` elements that stay unchanged for `'a`, or is NULL.
unsafe fn array<'a, T>(start: *const T, count: usize, what: &str) -> Result<&'a [T], Failed> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failed::argument(format!("{what} is NULL, not aligned, or too large")));
    }
    // SAFETY: it is not NULL, aligned and not too large; the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

impl Call {
    /// The request.
    ///
    /// # Safety
    /// The members are as the header says, and stay unchanged as long as the request is used.
    pub(crate) unsafe fn request(&self) -> Result<RingCall<'_>, Failed> {
        // SAFETY: the caller guarantees it, for all members.
        unsafe {
            let model = text(self.model, "the name of the model")?;
            let mut call = RingCall::of(model.ok_or_else(|| Failed::argument("the name of the model is NULL"))?);
            if let Some(json) = text(self.parameters, "the parameters")? {
                let parameters: Parameters = serde_json::from_str(json)
                    .map_err(|error| Failed::argument(format!("the parameters are not a JSON object: {error}")))?;
                call = call.parameters(parameters);
            }
            call = call.version(text(self.version, "the version")?.unwrap_or_default());
            call = call.id(text(self.id, "the id")?.unwrap_or_default());
            for input in array(self.inputs, self.input_count as usize, "the array of inputs")? {
                call = call.input_of(input.input()?);
            }
            for output in array(self.outputs, self.output_count as usize, "the array of outputs")? {
                let name = text(*output, "the name of an output")?;
                call = call.output(name.ok_or_else(|| Failed::argument("the name of an output is NULL"))?);
            }
            Ok(call)
        }
    }
}

impl Tensor {
    /// # Safety
    /// As for [`Call::request`].
    unsafe fn input(&self) -> Result<RingInput<'_>, Failed> {
        let datatype = usize::try_from(self.datatype).ok().and_then(|code| DataType::ALL.get(code));
        let datatype = *datatype.ok_or_else(|| Failed::argument(format!("there is no datatype {}", self.datatype)))?;
        let bytes = usize::try_from(self.bytes).map_err(|_| Failed::argument("an input is too large"))?;
        // SAFETY: the caller guarantees it, for all members.
        unsafe {
            let name = text(self.name, "the name of an input")?;
            let name = name.ok_or_else(|| Failed::argument("the name of an input is NULL"))?;
            let shape = array(self.shape, self.rank as usize, "the shape of an input")?;
            let bytes = array(self.data.cast::<u8>(), bytes, "the data of an input")?;
            Ok(RingInput { name, datatype, shape, bytes })
        }
    }
}

impl Answer {
    pub(crate) fn new(answer: RingAnswer) -> Answer {
        let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let names = answer.outputs.iter().map(|(name, _)| text(name)).collect();
        Answer { version: text(&answer.version), names, answer }
    }

    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    /// An output, whose pointers are valid as long as the answer.
    pub(crate) fn output(&self, index: usize) -> Option<Tensor> {
        let (name, (_, tensor)) = (self.names.get(index)?, self.answer.outputs.get(index)?);
        let code = DataType::ALL.iter().position(|datatype| *datatype == tensor.datatype)?;
        let data = if tensor.bytes.is_empty() { ptr::null() } else { tensor.bytes.as_ptr().cast::<c_void>() };
        Some(Tensor {
            name: name.as_ptr(),
            datatype: code as i32,
            rank: tensor.shape.len() as u32,
            shape: tensor.shape.as_ptr(),
            data,
            bytes: tensor.bytes.len() as u64,
        })
    }
}
