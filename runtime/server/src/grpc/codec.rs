//! Encodes and decodes messages. Like tonic's codec for prost, with two differences: a message that
//! cannot be decoded is a client error (`INVALID_ARGUMENT`), and decoding a large one does not
//! block other connections.

use crate::limits::DECODE_INLINE_BYTES_MAX;
use prost::Message;
use prost::bytes::Buf;
use std::marker::PhantomData;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::Status;
use tonic::codec::{Codec as TonicCodec, DecodeBuf, Decoder as TonicDecoder};
use tonic_prost::ProstCodec;

/// Encodes `T` and decodes `U`.
pub(crate) struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Codec<T, U> {
        Codec(PhantomData)
    }
}

impl<T, U> TonicCodec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as TonicCodec>::Encoder;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(PhantomData)
    }
}

/// Decodes messages.
pub(crate) struct Decoder<U>(PhantomData<U>);

impl<U: Message + Default> TonicDecoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let decoded = in_place(source.remaining(), || U::decode(source));
        decoded.map(Some).map_err(|error| Status::invalid_argument(format!("the message is not valid: {error}")))
    }
}

/// Runs `work` on `bytes` bytes of data. If there are many bytes, the runtime first moves the other
/// tasks of this thread to another one.
pub(super) fn in_place<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let can_move = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > DECODE_INLINE_BYTES_MAX && can_move() { tokio::task::block_in_place(work) } else { work() }
}
