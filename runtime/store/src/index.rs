//! The index of the store: a database that survives a SIGKILL at any moment.
//!
//! An entry is written after its file is complete and in place, and removed before its file. So a
//! file without an entry is garbage, which the next start removes. An entry without a file means
//! that another program deleted the file.

mod leases;

use crate::deployment::{Deployment, DeploymentKey};
use crate::error::{StoreError, is_full};
use crate::object::Holding;
use atoll_core::Tenant;
use atoll_sealed::Digest;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Digest of an object → its size.
const OBJECTS: TableDefinition<&[u8; 32], u64> = TableDefinition::new("objects");
/// Tenant and digest → [`Holding`] as JSON.
const HOLDINGS: TableDefinition<(&str, &[u8; 32]), &[u8]> = TableDefinition::new("holdings");
/// Tenant and function name → [`Deployment`] as JSON.
const DEPLOYMENTS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("deployments");
/// Tenant and graph name → its manifest as text. Older indices have no such table.
const GRAPHS: TableDefinition<(&str, &str), &str> = TableDefinition::new("graphs");
/// Tenant and instance name → its record as text. Older indices have no such table.
const INSTANCES: TableDefinition<(&str, &str), &str> = TableDefinition::new("instances");
/// Properties of the index itself.
const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");

/// Version of the tables. Other versions are refused.
const FORMAT: u64 = 1;

/// Cache of the database in bytes: the size of an index of a hundred thousand objects.
const CACHE_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    /// `None` after an I/O error. The database then refuses all operations, so it is closed, and
    /// reopened at the next use.
    database: Option<Database>,
}

/// Contents of the index.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) objects: Vec<(Digest, u64)>,
    pub(crate) holdings: Vec<(Tenant, Digest, Holding)>,
    pub(crate) deployments: Vec<(DeploymentKey, Deployment)>,
    pub(crate) graphs: Vec<(DeploymentKey, String)>,
    pub(crate) instances: Vec<(DeploymentKey, String)>,
}

/// A set of changes, applied atomically.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Objects with their sizes.
    pub(crate) put: Vec<(Digest, u64)>,
    pub(crate) forget: Vec<Digest>,
    pub(crate) hold: Vec<(Tenant, Digest, Holding)>,
    pub(crate) release: Vec<(Tenant, Digest)>,
    pub(crate) deploy: Vec<(DeploymentKey, Deployment)>,
    pub(crate) withdraw: Vec<DeploymentKey>,
    /// Graphs with their manifests.
    pub(crate) put_graphs: Vec<(DeploymentKey, String)>,
    pub(crate) drop_graphs: Vec<DeploymentKey>,
    /// Instances with their records.
    pub(crate) put_instances: Vec<(DeploymentKey, String)>,
    pub(crate) drop_instances: Vec<DeploymentKey>,
}

impl Index {
    /// Makes the file unreadable for other users, since it contains the function names of all
    /// tenants.
    pub(crate) fn keep_private(&self) -> Result<(), StoreError> {
        let kept = std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o600));
        kept.map_err(|source| StoreError::Io { what: "cannot restrict", path: self.path.clone(), source })
    }

    pub(crate) fn open(path: PathBuf) -> Result<Index, StoreError> {
        let mut index = Index { path, database: None };
        let database = index.database()?;
        let found = read_format(database).map_err(|error| index.failed(error))?;
        match found {
            Some(FORMAT) => Ok(index),
            None => {
                index.write(|transaction| drop_old(transaction.open_table(ABOUT)?.insert("format", FORMAT)))?;
                Ok(index)
            }
            Some(other) => Err(StoreError::Index {
                path: index.path,
                reason: format!("it has format {other}, but this daemon uses format {FORMAT}; use another --state"),
            }),
        }
    }

    pub(crate) fn contents(&mut self) -> Result<Contents, StoreError> {
        let database = self.database()?;
        read_contents(database).map_err(|error| self.failed(error))
    }

    /// Writes a change. It is durable when this returns.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), StoreError> {
        self.write(|transaction| {
            let mut objects = transaction.open_table(OBJECTS)?;
            for (digest, bytes) in &change.put {
                objects.insert(digest.as_bytes(), bytes)?;
            }
            for digest in &change.forget {
                objects.remove(digest.as_bytes())?;
            }
            let mut holdings = transaction.open_table(HOLDINGS)?;
            for (tenant, digest, holding) in &change.hold {
                holdings.insert((tenant.as_str(), digest.as_bytes()), json(holding).as_slice())?;
            }
            for (tenant, digest) in &change.release {
                holdings.remove((tenant.as_str(), digest.as_bytes()))?;
            }
            let mut deployments = transaction.open_table(DEPLOYMENTS)?;
            for (key, deployment) in &change.deploy {
                deployments.insert((key.tenant.as_str(), key.name.as_str()), json(deployment).as_slice())?;
            }
            for key in &change.withdraw {
                deployments.remove((key.tenant.as_str(), key.name.as_str()))?;
            }
            let mut graphs = transaction.open_table(GRAPHS)?;
            for (key, manifest) in &change.put_graphs {
                graphs.insert((key.tenant.as_str(), key.name.as_str()), manifest.as_str())?;
            }
            for key in &change.drop_graphs {
                graphs.remove((key.tenant.as_str(), key.name.as_str()))?;
            }
            let mut instances = transaction.open_table(INSTANCES)?;
            for (key, record) in &change.put_instances {
                instances.insert((key.tenant.as_str(), key.name.as_str()), record.as_str())?;
            }
            for key in &change.drop_instances {
                instances.remove((key.tenant.as_str(), key.name.as_str()))?;
            }
            Ok(())
        })
    }

    fn write(&mut self, change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>) -> Result<(), StoreError> {
        let written = self.database()?.begin_write().map_err(redb::Error::from).and_then(|transaction| {
            change(&transaction)?;
            Ok(transaction.commit()?)
        });
        written.map_err(|error| self.failed(error))
    }

    fn database(&mut self) -> Result<&Database, StoreError> {
        if self.database.is_none() {
            let opened = Database::builder().set_cache_size(CACHE_BYTES).create(&self.path);
            self.database = Some(opened.map_err(|error| match error {
                DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: self.path.clone() },
                other => self.describe(other.into()),
            })?);
        }
        self.database.as_ref().ok_or_else(|| StoreError::InUse { path: self.path.clone() })
    }

    /// Closes the database after an I/O error, so that the next use reopens it.
    fn failed(&mut self, error: redb::Error) -> StoreError {
        self.database = None;
        self.describe(error)
    }

    fn describe(&self, error: redb::Error) -> StoreError {
        match error {
            redb::Error::Io(source) if is_full(&source) => {
                StoreError::DiskFull { folder: self.path.parent().unwrap_or(&self.path).to_path_buf() }
            }
            redb::Error::Io(source) => StoreError::Io { what: "cannot use", path: self.path.clone(), source },
            other => StoreError::Index { path: self.path.clone(), reason: other.to_string() },
        }
    }
}

fn drop_old<T>(old: Result<T, StorageError>) -> Result<(), redb::Error> {
    Ok(old.map(drop)?)
}

fn read_format(database: &Database) -> Result<Option<u64>, redb::Error> {
    match database.begin_read()?.open_table(ABOUT) {
        Ok(about) => Ok(about.get("format")?.map(|value| value.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_contents(database: &Database) -> Result<Contents, redb::Error> {
    let transaction = database.begin_read()?;
    let mut contents = Contents::default();
    let objects = match transaction.open_table(OBJECTS) {
        // The index is new and has no tables.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(contents),
        objects => objects?,
    };
    for entry in objects.iter()? {
        let (digest, bytes) = entry?;
        contents.objects.push((Digest::from_bytes(*digest.value()), bytes.value()));
    }
    for entry in transaction.open_table(HOLDINGS)?.iter()? {
        let (key, holding) = entry?;
        let (tenant, digest) = key.value();
        contents.holdings.push((tenant_of(tenant)?, Digest::from_bytes(*digest), parsed(holding.value())?));
    }
    for entry in transaction.open_table(DEPLOYMENTS)?.iter()? {
        let (key, deployment) = entry?;
        let (tenant, name) = key.value();
        contents
            .deployments
            .push((DeploymentKey { tenant: tenant_of(tenant)?, name: name.into() }, parsed(deployment.value())?));
    }
    contents.graphs = texts(&transaction, GRAPHS)?;
    contents.instances = texts(&transaction, INSTANCES)?;
    Ok(contents)
}

/// The texts of a table by tenant and name. Empty if an older daemon wrote the index.
fn texts(
    transaction: &ReadTransaction,
    table: TableDefinition<'_, (&'static str, &'static str), &'static str>,
) -> Result<Vec<(DeploymentKey, String)>, redb::Error> {
    let table = match transaction.open_table(table) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table?,
    };
    let mut texts = Vec::new();
    for entry in table.iter()? {
        let (key, text) = entry?;
        let (tenant, name) = key.value();
        texts.push((DeploymentKey { tenant: tenant_of(tenant)?, name: name.into() }, text.value().into()));
    }
    Ok(texts)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("structs of numbers and strings can be serialized")
}

fn parsed<T: DeserializeOwned>(json: &[u8]) -> Result<T, redb::Error> {
    serde_json::from_slice(json).map_err(|error| damaged(&error))
}

fn tenant_of(name: &str) -> Result<Tenant, redb::Error> {
    name.parse().map_err(|error| damaged(&error))
}

fn damaged(error: &dyn std::fmt::Display) -> redb::Error {
    redb::Error::Io(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}
