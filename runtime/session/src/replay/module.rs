//! Modules, their kernels and variables.

use crate::backend::{Backend, LoadFailure};
use crate::code::Code;
use crate::image;
use crate::limits::{IMAGE_BYTES_MAX, IMAGES_BYTES_MAX, KERNELS_MAX, MODULES_MAX, NAME_BYTES_MAX, PARAMS_BYTES_MAX};
use crate::replay::{Failed, Kernel, Owner, Replayer, admit};
use sha2::{Digest, Sha256};
use std::sync::Arc;

impl<B: Backend> Replayer<B> {
    pub(super) fn load(&mut self, module: u32, digest: [u8; 32], image: &[u8]) -> Result<Vec<u8>, Failed> {
        admit(&self.modules, module, MODULES_MAX)?;
        let image = match image {
            [] => match self.images.get(&digest) {
                Some(sent) => sent.clone(),
                None => {
                    let kept = self.backend.kept_image(&digest).ok_or(Code::INVALID_IMAGE)?;
                    self.keep(digest, kept)?
                }
            },
            sent => self.check_image(digest, sent).and_then(|()| self.keep(digest, sent.into()))?,
        };
        let loaded = self.backend.load(&image).map_err(|LoadFailure { code, log }| Failed(code, log))?;
        self.backend.keep_image(digest, &image);
        self.modules.insert(module, loaded);
        Ok(Vec::new())
    }

    /// Checks an image that the client has sent.
    fn check_image(&mut self, digest: [u8; 32], image: &[u8]) -> Result<(), Code> {
        if image.len() as u64 > IMAGE_BYTES_MAX || <[u8; 32]>::from(Sha256::digest(image)) != digest {
            return Err(Code::INVALID_IMAGE);
        }
        image::check(image)?;
        self.report.images += 1;
        Ok(())
    }

    /// Keeps an image for modules that the session loads later.
    fn keep(&mut self, digest: [u8; 32], image: Arc<[u8]>) -> Result<Arc<[u8]>, Code> {
        let bytes = image.len() as u64;
        if self.images_bytes + bytes > IMAGES_BYTES_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        if self.images.insert(digest, image.clone()).is_none() {
            self.images_bytes += bytes;
        }
        Ok(image)
    }

    pub(super) fn unload(&mut self, module: u32) -> Result<(), Code> {
        let unloaded = self.modules.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        self.kernels.retain(|_, kernel| kernel.module != module);
        for at in self.ranges.starts(|owner| *owner == Owner::Module(module)) {
            self.ranges.remove(at);
        }
        self.backend.unload(&unloaded);
        Ok(())
    }

    pub(super) fn kernel(&mut self, number: u32, module: u32, name: &str) -> Result<Vec<u8>, Failed> {
        admit(&self.kernels, number, KERNELS_MAX)?;
        check_name(name)?;
        let of = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let (kernel, facts) = self.backend.kernel(of, name)?;
        let params_bytes = facts.params_bytes();
        if params_bytes > PARAMS_BYTES_MAX {
            return Err(Code::NOT_SUPPORTED.into());
        }
        self.kernels.insert(number, Kernel { kernel, module, params_bytes });
        Ok(facts.write())
    }

    pub(super) fn variable(&mut self, module: u32, name: &str) -> Result<Vec<u8>, Failed> {
        check_name(name)?;
        let of = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let span = self.backend.variable(of, name)?;
        let is_known = self.ranges.find(span.at).is_some_and(|(known, _)| known == span);
        if !is_known {
            self.ranges.insert(span, Owner::Module(module))?;
        }
        Ok([span.at.to_le_bytes(), span.bytes.to_le_bytes()].concat())
    }
}

fn check_name(name: &str) -> Result<(), Code> {
    if name.len() > NAME_BYTES_MAX || name.contains('\0') { Err(Code::NOT_FOUND) } else { Ok(()) }
}
