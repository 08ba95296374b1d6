//! Answers the calls of the kubelet.

use crate::driver::Driver;
use crate::names::DRIVER;
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::proto::v1::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::proto::{v1, v1beta1};
use axum::Router;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};

/// The services that the kubelet may use, the best first.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// The calls about claims.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    driver: Arc<Driver>,
}

impl Plugin {
    pub(crate) fn new(driver: Arc<Driver>) -> Plugin {
        Plugin { driver }
    }

    /// Its services, in both versions.
    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route_service(
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{rpc}",
                v1::dra_plugin_server::DraPluginServer::new(self.clone()),
            )
            .route_service(
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/{rpc}",
                v1beta1::dra_plugin_server::DraPluginServer::new(self.clone()),
            )
    }

    async fn prepare(&self, request: NodePrepareResourcesRequest) -> NodePrepareResourcesResponse {
        let driver = self.driver.clone();
        let prepared = each(request.claims, move |Claim { namespace, uid, name }| {
            let (devices, error) = match driver.prepare(&namespace, &name, &uid) {
                Ok(devices) => (devices, String::new()),
                Err(error) => {
                    tracing::warn!(namespace, name, claim = uid, error, "a claim is not prepared");
                    (Vec::new(), error)
                }
            };
            let device = |one: crate::driver::Prepared| Device {
                request_names: vec![one.request],
                pool_name: one.pool,
                device_name: one.device,
                cdi_device_ids: vec![one.cdi],
                share_id: one.share_id,
            };
            NodePrepareResourceResponse { devices: devices.into_iter().map(device).collect(), error }
        });
        NodePrepareResourcesResponse { claims: prepared.await }
    }

    async fn unprepare(&self, request: NodeUnprepareResourcesRequest) -> NodeUnprepareResourcesResponse {
        let driver = self.driver.clone();
        let released = each(request.claims, move |claim| {
            let error = driver.unprepare(&claim.uid).err().unwrap_or_default();
            NodeUnprepareResourceResponse { error }
        });
        NodeUnprepareResourcesResponse { claims: released.await }
    }
}

/// Does something for each claim, at the same time, in threads that may wait. The results by UID; the
/// kubelet asks again about a claim without a result.
async fn each<T: Send + 'static>(
    claims: Vec<Claim>,
    run: impl Fn(Claim) -> T + Clone + Send + 'static,
) -> HashMap<String, T> {
    let mut tasks = JoinSet::new();
    for claim in claims {
        let run = run.clone();
        tasks.spawn_blocking(move || (claim.uid.clone(), run(claim)));
    }
    let mut results = HashMap::new();
    while let Some(done) = tasks.join_next().await {
        if let Ok((uid, result)) = done {
            results.insert(uid, result);
        }
    }
    results
}

/// Answers the calls of a version of the service. All versions have the same messages.
macro_rules! served {
    ($($service:ident)::+) => {
        #[tonic::async_trait]
        impl $($service)::+ for Plugin {
            async fn node_prepare_resources(
                &self,
                request: Request<NodePrepareResourcesRequest>,
            ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
                Ok(Response::new(self.prepare(request.into_inner()).await))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<NodeUnprepareResourcesRequest>,
            ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
                Ok(Response::new(self.unprepare(request.into_inner()).await))
            }
        }
    };
}

served!(v1::dra_plugin_server::DraPlugin);
served!(v1beta1::dra_plugin_server::DraPlugin);

/// The calls by which the kubelet finds the driver.
#[derive(Clone, Debug)]
pub(crate) struct Announcement {
    /// The socket of [`Plugin`].
    endpoint: String,
}

impl Announcement {
    pub(crate) fn new(endpoint: &Path) -> Announcement {
        Announcement { endpoint: endpoint.to_string_lossy().into_owned() }
    }

    /// Its service.
    pub(crate) fn router(&self) -> Router {
        Router::new().route_service("/pluginregistration.Registration/{rpc}", RegistrationServer::new(self.clone()))
    }
}

#[tonic::async_trait]
impl Registration for Announcement {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(str::to_owned).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = status.into_inner();
        match plugin_registered {
            true => tracing::info!("registered at the kubelet"),
            false => tracing::error!(error, "the kubelet does not register the driver"),
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kubelet_learns_the_socket_and_the_versions() {
        let announcement = Announcement::new(Path::new("/var/lib/kubelet/plugins/gpu.atoll.dev/dra.sock"));
        let info = announcement.get_info(Request::new(InfoRequest {})).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "gpu.atoll.dev"));
        assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/gpu.atoll.dev/dra.sock");
        assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    }

    #[tokio::test]
    async fn each_claim_has_its_result() {
        let claims = ["a", "b"].map(|uid| Claim { uid: uid.into(), ..Claim::default() });
        let results = each(claims.into(), |claim| claim.uid.len()).await;
        assert_eq!(results, HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]));
    }
}
