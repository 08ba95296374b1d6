//! Answers the calls of the kubelet for one resource.

use crate::allocation::allocate;
use crate::preference::choose;
use crate::proto::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::proto::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use crate::resource::Resource;
use atoll_kubernetes::capacity::Capacity;
use atoll_kubernetes::gift::Gift;
use axum::Router;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt::Write;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Version of the kubelet's protocol.
const VERSION: &str = "v1beta1";

/// The plugin of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    resource: Arc<Resource>,
    capacity: watch::Receiver<Arc<Capacity>>,
    gift: Arc<Gift>,
}

impl Plugin {
    pub(crate) fn new(resource: Resource, capacity: watch::Receiver<Arc<Capacity>>, gift: Arc<Gift>) -> Plugin {
        Plugin { resource: Arc::new(resource), capacity, gift }
    }

    /// Waits until the daemon has answered once.
    pub(crate) async fn is_known(&self) {
        // Its sender lives as long as the program.
        let _ = self.capacity.clone().wait_for(|capacity| !capacity.devices.is_empty()).await;
    }

    /// The name of its socket: that of the resource, of which `/` is no part of a file's name.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}.sock", self.resource.name.replace('/', "_"))
    }

    /// Its services.
    pub(crate) fn router(&self) -> Router {
        Router::new().route_service("/v1beta1.DevicePlugin/{rpc}", DevicePluginServer::new(self.clone()))
    }

    /// What it announces to the kubelet.
    pub(crate) fn announcement(&self) -> RegisterRequest {
        RegisterRequest {
            version: VERSION.into(),
            endpoint: self.endpoint(),
            resource_name: self.resource.name.clone(),
            options: Some(options()),
        }
    }

    fn list(&self, capacity: &Capacity) -> ListAndWatchResponse {
        let units = self.resource.units(capacity).unwrap_or_else(|error| {
            tracing::error!("{error}");
            Vec::new()
        });
        let device = |(id, is_healthy)| Device {
            id,
            health: if is_healthy { "Healthy" } else { "Unhealthy" }.into(),
            topology: None,
        };
        ListAndWatchResponse { devices: units.into_iter().map(device).collect() }
    }
}

fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// Sends the list of units, and again whenever it is different, until the kubelet goes.
async fn send_lists(mut plugin: Plugin, lists: mpsc::Sender<Result<ListAndWatchResponse, Status>>) {
    let mut sent = None;
    loop {
        let capacity = Arc::clone(&plugin.capacity.borrow_and_update());
        let list = plugin.list(&capacity);
        if sent.as_ref() != Some(&list) {
            if lists.send(Ok(list.clone())).await.is_err() {
                return;
            }
            sent = Some(list);
        }
        tokio::select! {
            changed = plugin.capacity.changed() => if changed.is_err() { return },
            () = lists.closed() => return,
        }
    }
}

/// 128 random bits.
fn random_id() -> Result<String, Status> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    if filled != Ok(bytes.len()) {
        return Err(Status::internal("the system has no random numbers"));
    }
    let mut id = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (lists, receiver) = mpsc::channel(1);
        tokio::spawn(send_lists(self.clone(), lists));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let count = usize::try_from(container.allocation_size).unwrap_or(0);
            let device_ids = choose(&container.available_device_ids, &container.must_include_device_ids, count);
            container_responses.push(ContainerPreferredAllocationResponse { device_ids });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let capacity = Arc::clone(&self.capacity.borrow());
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ids = &container.devices_ids;
            let given = allocate(&self.gift, &self.resource, &capacity, ids, &random_id()?);
            container_responses.push(given.map_err(Status::invalid_argument)?);
            tracing::info!(resource = self.resource.name, units = ids.len(), "allocated");
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Unit;
    use atoll_kubernetes::capacity;

    fn plugin(unit: Unit) -> (watch::Sender<Arc<Capacity>>, Plugin) {
        let device = |is_healthy| capacity::Device {
            name: "host:0".into(),
            is_healthy,
            memory_bytes: u64::MAX,
            real_time_slots: 2,
        };
        let (sender, receiver) = watch::channel(Arc::new(Capacity { devices: vec![device(true)] }));
        let resource = Resource { name: "atoll.dev/rt-slots".into(), unit };
        (sender, Plugin::new(resource, receiver, Arc::new(Gift::default())))
    }

    #[tokio::test]
    async fn a_list_is_sent_again_when_it_is_different() {
        let (capacity, plugin) = plugin(Unit::RealTimeSlot);
        let (sender, mut lists) = mpsc::channel(1);
        let sent = tokio::spawn(send_lists(plugin.clone(), sender));
        let health = |list: Option<Result<ListAndWatchResponse, Status>>| {
            let devices = list.unwrap().unwrap().devices;
            devices.into_iter().map(|device| (device.id, device.health)).collect::<Vec<_>>()
        };
        let pair = |id: &str, health: &str| (id.to_owned(), health.to_owned());
        let expected = [pair("host:0-0", "Healthy"), pair("host:0-1", "Healthy")];
        assert_eq!(health(lists.recv().await), expected);
        let first = Arc::clone(&capacity.borrow());
        capacity.send(Arc::new(first.unreachable())).unwrap();
        let expected = [pair("host:0-0", "Unhealthy"), pair("host:0-1", "Unhealthy")];
        assert_eq!(health(lists.recv().await), expected);
        // The kubelet goes.
        drop(lists);
        sent.await.unwrap();
    }

    #[test]
    fn a_list_that_is_too_long_is_empty() {
        let (capacity, plugin) = plugin(Unit::Memory(1));
        assert!(plugin.list(&capacity.borrow()).devices.is_empty());
    }

    #[test]
    fn an_announcement_names_the_socket() {
        let (_capacity, plugin) = plugin(Unit::RealTimeSlot);
        let announcement = plugin.announcement();
        assert_eq!(announcement.endpoint, "atoll.dev_rt-slots.sock");
        assert_eq!(
            (announcement.version.as_str(), announcement.resource_name.as_str()),
            ("v1beta1", "atoll.dev/rt-slots")
        );
        assert!(announcement.options.unwrap().get_preferred_allocation_available);
    }

    #[test]
    fn ids_of_requests_are_random() {
        let (first, second) = (random_id().unwrap(), random_id().unwrap());
        assert!(first.len() == 32 && first != second, "{first} {second}");
    }
}
