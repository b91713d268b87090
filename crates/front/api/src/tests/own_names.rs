//! Tests of the names of the platform itself: a certificate that cannot be had is said by commands.

use model::acme::{AcmeError, AcmeOrder, AcmeSettings, PublicAddresses};
use model::node::Member;
use model::record::{RECORD_VERSION, Unknown};
use model::{CertificateName, PlatformAddress, Timestamp};

use super::*;
use api_types::certificates::CertificatesShown;
use api_types::{Check, CheckResult, NodeStatus};

impl Fixture {
    async fn write<T: serde::Serialize>(&self, key: TypedKey, record: &T) {
        records::write(&*self.store, key, record).await.unwrap();
    }

    async fn order_fails(&self, name: &str, detail: &str) {
        let error = AcmeError {
            kind: "rejectedIdentifier".into(),
            detail: detail.into(),
            at: Timestamp(1),
            node: self.node.clone(),
        };
        let order = json!({
            "v": 1, "node": self.node, "claimed_at": 1, "active": false,
            "rest_until": u64::MAX, "error": error,
        });
        let order: AcmeOrder = serde_json::from_value(order).unwrap();
        let name: CertificateName = name.parse().unwrap();
        self.write(TypedKey::AcmeOrder(name), &order).await;
    }

    async fn own_name_checks(&self) -> Vec<Check> {
        let checks: Vec<Check> = self.client.get("/v1/doctor").await.unwrap();
        checks.into_iter().filter(|check| check.name == "own name").collect()
    }
}

#[tokio::test]
async fn a_certificate_that_the_platform_cannot_have_is_told() {
    let api = Fixture::start().await;
    assert!(api.own_name_checks().await.is_empty(), "it has no name");
    let name: PlatformAddress = "cortex.example.org:8443".parse().unwrap();
    api.write(TypedKey::PlatformAddress, &name).await;
    let directory = "https://acme.invalid/dir".to_owned();
    let settings = AcmeSettings::agreed(None, directory, Timestamp(1), "ana");
    api.write(TypedKey::AcmeSettings, &settings).await;
    api.order_fails("cortex.example.org", "forbidden by policy").await;
    let said = |text: &str| text.contains("forbidden by policy");
    let checks = api.own_name_checks().await;
    assert_eq!((checks.len(), checks[0].result), (1, CheckResult::Fail), "{checks:?}");
    assert!(said(&checks[0].detail) && checks[0].advice.is_some(), "{checks:?}");
    let status: NodeStatus = api.client.get("/v1/status").await.unwrap();
    assert_eq!(status.own_names[0].url, "https://cortex.example.org:8443");
    assert!(status.problems.iter().any(|problem| said(problem)), "{status:?}");
    let all: CertificatesShown = api.client.get("/v1/certificates").await.unwrap();
    assert!(said(&all.notes[0]), "{all:?}");
    // What `certs retry` says: the order may be tried again now.
    let retry = |name: &str| format!("/v1/certificates/{name}/retry");
    let again: bool = api.client.post(&retry("cortex.example.org"), &()).await.unwrap();
    assert!(again);
    let other: anyhow::Result<bool> = api.client.post(&retry("shop.example.org"), &()).await;
    assert_eq!(code(other), "no_domain");
}

#[tokio::test]
async fn addresses_of_members_are_names_of_the_platform() {
    let api = Fixture::start().await;
    let public = |address: &str| PublicAddresses {
        v: RECORD_VERSION,
        addresses: vec![address.parse().unwrap()],
        unknown: Unknown::new(),
    };
    let gone = "n9".parse().unwrap();
    api.write(TypedKey::PublicAddresses(api.node.clone()), &public("192.0.2.7")).await;
    api.write(TypedKey::PublicAddresses(gone), &public("192.0.2.9")).await;
    let member: Member =
        serde_json::from_value(json!({ "v": 1, "id": api.node, "joined_at": 1 })).unwrap();
    api.write(TypedKey::Member(api.node.clone()), &member).await;
    api.order_fails("192.0.2.7", "no route").await;
    let checks = api.own_name_checks().await;
    assert_eq!(checks.len(), 1, "{checks:?}");
    assert!(checks[0].detail.contains("192.0.2.7") && checks[0].detail.contains("no route"));
}
