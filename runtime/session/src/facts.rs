//! Facts about a device or kernel, which the server sends once.

use crate::field::{Field, Reader, WireError};
use crate::limits::{FACTS_BYTES_MAX, PARAMS_BYTES_MAX, PARAMS_MAX};

/// Number of device attributes that are sent; the driver numbers them from 1.
const ATTRIBUTES: usize = 150;

/// Number of attributes of a kernel; the driver numbers them from 0. The last ones are of clusters.
/// NVIDIA's runtime asks for each of them, and fails if one is missing.
pub const KERNEL_ATTRIBUTES: usize = 16;

/// Facts about a session's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its PCI bus id, in the driver's form.
    pub pci_bus_id: String,
    /// The driver's version: 12040 is 12.4.
    pub driver: u32,
    /// The highest stream priority: the lowest number, which is negative.
    pub priority: i32,
    /// Its attributes, by number: the first is attribute 1. `None` if the driver does not know one.
    pub attributes: Vec<Option<i32>>,
}

impl DeviceFacts {
    /// The numbers of the attributes in [`DeviceFacts::attributes`].
    pub fn attribute_numbers() -> impl Iterator<Item = i32> {
        1..=ATTRIBUTES as i32
    }

    /// The value of an attribute; `None` if the driver does not know it.
    pub fn attribute(&self, number: i32) -> Option<i32> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.attributes.get(index).copied().flatten()
    }

    /// Encodes the facts.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.name.as_str().write(&mut bytes);
        self.uuid.write(&mut bytes);
        self.pci_bus_id.as_str().write(&mut bytes);
        self.driver.write(&mut bytes);
        self.priority.write(&mut bytes);
        (self.attributes.len().min(ATTRIBUTES) as u32).write(&mut bytes);
        for attribute in self.attributes.iter().take(ATTRIBUTES) {
            u32::from(attribute.is_some()).write(&mut bytes);
            attribute.unwrap_or(0).write(&mut bytes);
        }
        bytes
    }

    /// Decodes the facts.
    pub fn read(bytes: &[u8]) -> Result<DeviceFacts, WireError> {
        if bytes.len() > FACTS_BYTES_MAX as usize {
            return Err(WireError::Value { what: "the size of facts", value: bytes.len() as u64 });
        }
        let mut reader = Reader::new(bytes);
        let name = reader.get::<&str>()?.to_owned();
        let uuid = reader.get()?;
        let pci_bus_id = reader.get::<&str>()?.to_owned();
        let (driver, priority, count) = (reader.get()?, reader.get()?, reader.get::<u32>()?);
        if count as usize > ATTRIBUTES {
            return Err(WireError::Value { what: "the number of attributes", value: count.into() });
        }
        let mut attributes = Vec::new();
        for _ in 0..count {
            let (is_known, value) = (reader.get::<u32>()?, reader.get::<i32>()?);
            attributes.push((is_known != 0).then_some(value));
        }
        Ok(DeviceFacts { name, uuid, pci_bus_id, driver, priority, attributes })
    }
}

/// Facts about a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Offset and size of each parameter in the parameter block.
    pub params: Vec<(u32, u32)>,
    /// Attributes by their numbers in the header.
    pub attributes: [i32; KERNEL_ATTRIBUTES],
}

impl KernelFacts {
    /// Size of the parameter block in bytes.
    pub fn params_bytes(&self) -> usize {
        self.params.iter().map(|(at, bytes)| *at as usize + *bytes as usize).max().unwrap_or(0)
    }

    /// Encodes the facts.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.attributes.iter().for_each(|value| value.write(&mut bytes));
        (self.params.len() as u32).write(&mut bytes);
        for (at, size) in &self.params {
            at.write(&mut bytes);
            size.write(&mut bytes);
        }
        bytes
    }

    /// Decodes the facts.
    pub fn read(bytes: &[u8]) -> Result<KernelFacts, WireError> {
        let mut reader = Reader::new(bytes);
        let mut facts = KernelFacts::default();
        for value in &mut facts.attributes {
            *value = reader.get()?;
        }
        let count = reader.get::<u32>()?;
        if count as usize > PARAMS_MAX {
            return Err(WireError::Value { what: "the number of parameters", value: count.into() });
        }
        for _ in 0..count {
            facts.params.push((reader.get()?, reader.get()?));
        }
        if facts.params_bytes() > PARAMS_BYTES_MAX {
            return Err(WireError::Value { what: "the size of parameters", value: facts.params_bytes() as u64 });
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written() {
        let device = DeviceFacts {
            name: "a device".to_owned(),
            uuid: [3; 16],
            pci_bus_id: "0000:00:00.0".to_owned(),
            driver: 12040,
            priority: -5,
            attributes: vec![Some(1024), None, Some(-1)],
        };
        assert_eq!(DeviceFacts::read(&device.write()), Ok(device.clone()));
        assert_eq!([0, 1, 2, 3, 4].map(|number| device.attribute(number)), [None, Some(1024), None, Some(-1), None]);
        let kernel = KernelFacts { params: vec![(0, 8), (8, 4)], attributes: [7; KERNEL_ATTRIBUTES] };
        assert_eq!(kernel.params_bytes(), 12);
        assert_eq!(KernelFacts::read(&kernel.write()), Ok(kernel));
    }

    #[test]
    fn lying_facts_are_refused() {
        let kernel = KernelFacts { params: vec![(u32::MAX, u32::MAX)], attributes: [0; KERNEL_ATTRIBUTES] };
        assert!(KernelFacts::read(&kernel.write()).is_err());
        assert!(KernelFacts::read(&[255; 44]).is_err());
        assert!(DeviceFacts::read(&[255; 44]).is_err());
    }
}
