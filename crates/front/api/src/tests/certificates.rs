//! Tests of certificates that people bring: what is checked, what is kept, and what nobody sees.

use model::certificate::{CertificateSource, SecretText};
use model::{Certificate, CertificateName};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;
use api_types::certificates::CertificatesShown;

struct Made {
    chain: String,
    key: String,
}

fn made(names: &[&str]) -> Made {
    made_with(names, |_| ())
}

fn made_with(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Made {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let chain = params.self_signed(&key).unwrap().pem();
    Made { chain, key: key.serialize_pem() }
}

impl Fixture {
    async fn with_domains(&self, app: &str, domains: &[&str]) {
        let _: Value = self.client.post("/v1/apps", &json!({ "name": app })).await.unwrap();
        let path = format!("/v1/apps/{app}/domains");
        let _: Value = self.client.post(&path, &json!({ "add": domains })).await.unwrap();
    }

    async fn bring(&self, app: &str, made: &Made) -> anyhow::Result<CertificatesShown> {
        let body = json!({ "chain": made.chain, "key": made.key });
        self.client.post(&format!("/v1/apps/{app}/certificates"), &body).await
    }

    async fn certificates(&self, app: &str) -> Vec<String> {
        let path = format!("/v1/apps/{app}/certificates");
        let shown: CertificatesShown = self.client.get(&path).await.unwrap();
        shown.certificates.into_iter().map(|row| format!("{} {}", row.name, row.state)).collect()
    }

    async fn record(&self, name: &str) -> Option<Certificate> {
        let name: CertificateName = name.parse().unwrap();
        crate::records::read(&*self.store, TypedKey::Certificate(name)).await.unwrap()
    }
}

fn names(shown: &CertificatesShown) -> Vec<&str> {
    shown.certificates.iter().map(|row| row.name.as_str()).collect()
}

#[tokio::test]
async fn a_certificate_is_kept_for_the_domains_that_it_is_good_for() {
    let api = Fixture::start().await;
    api.with_domains("shop", &["shop.example", "a.wild.example", "*.wild.example"]).await;
    api.with_domains("other", &["other.example"]).await;
    let brought = made(&["shop.example", "other.example", "free.example", "x.localhost"]);
    let shown = api.bring("shop", &brought).await.unwrap();
    assert_eq!(names(&shown), ["free.example", "shop.example"]);
    assert_eq!(shown.notes, ["not kept for other.example: not a domain of shop"]);
    let row = &shown.certificates[1];
    assert_eq!((row.source.as_str(), row.state.as_str()), ("uploaded", "served"));
    assert_eq!(row.held_by, ["n1"]);
    assert!(shown.certificates[0].state.starts_with("not served"), "{shown:?}");
    // One star covers both a name and the family.
    let shown = api.bring("shop", &made(&["*.wild.example"])).await.unwrap();
    assert_eq!(names(&shown), ["*.wild.example", "a.wild.example"]);
    let all = ["*.wild.example served", "a.wild.example served"];
    assert_eq!(api.certificates("shop").await[..2], all);
    assert!(api.certificates("other").await.is_empty());
    // A domain that is given up is not served any more, and what was brought for it neither.
    let path = "/v1/apps/shop/domains";
    let _: Value = api.client.post(path, &json!({ "remove": ["shop.example"] })).await.unwrap();
    let expected = "shop.example not served: no domain of shop".to_owned();
    assert!(api.certificates("shop").await.contains(&expected));
    api.with_domains("third", &["third.example"]).await;
    let third = "/v1/apps/third/domains";
    let _: Value = api.client.post(third, &json!({ "add": ["shop.example"] })).await.unwrap();
    api.bring("third", &made(&["shop.example"])).await.unwrap();
    assert_eq!(api.record("shop.example").await.unwrap().owner.unwrap().application, {
        "third".parse().unwrap()
    });
}

#[tokio::test]
async fn what_is_not_good_is_refused_and_the_old_one_stays() {
    let api = Fixture::start().await;
    api.with_domains("shop", &["shop.example"]).await;
    let good = made(&["shop.example"]);
    api.bring("shop", &good).await.unwrap();
    let before = api.record("shop.example").await.unwrap();
    let other = made(&["shop.example"]);
    let mixed = Made { chain: good.chain.clone(), key: other.key };
    assert_eq!(code(api.bring("shop", &mixed).await), "key_mismatch");
    let yesterday = time::OffsetDateTime::now_utc() - time::Duration::DAY;
    let old = made_with(&["shop.example"], |params| params.not_after = yesterday);
    assert_eq!(code(api.bring("shop", &old).await), "certificate_expired");
    let disordered =
        Made { chain: format!("{}{}", good.chain, other.chain), key: good.key.clone() };
    assert_eq!(code(api.bring("shop", &disordered).await), "certificate_refused");
    let localhost = made(&["x.localhost"]);
    assert_eq!(code(api.bring("shop", &localhost).await), "no_name_for_certificate");
    assert_eq!(code(api.bring("nobody", &good).await), "no_application");
    let empty = Made { chain: String::new(), key: good.key.clone() };
    assert_eq!(code(api.bring("shop", &empty).await), "certificate_refused");
    assert_eq!(api.record("shop.example").await, Some(before));
}

#[tokio::test]
async fn a_chain_is_kept_whole_and_one_for_the_name_of_another_goes_nowhere() {
    let api = Fixture::start().await;
    api.with_domains("shop", &["shop.example"]).await;
    api.with_domains("other", &["other.example"]).await;
    let mut of_root = CertificateParams::new(Vec::new()).unwrap();
    of_root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    of_root.distinguished_name.push(rcgen::DnType::CommonName, "Our Authority");
    let root_key = KeyPair::generate().unwrap();
    let root = of_root.self_signed(&root_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["shop.example".to_owned()]).unwrap();
    let own = params.signed_by(&key, &Issuer::from_params(&of_root, &root_key)).unwrap();
    let chain = format!("{}{}", own.pem(), root.pem());
    let brought = Made { chain: chain.clone(), key: key.serialize_pem() };
    let shown = api.bring("shop", &brought).await.unwrap();
    assert_eq!(shown.certificates[0].issuer, "Our Authority");
    assert_eq!(api.record("shop.example").await.unwrap().chain, chain);
    assert_eq!(code(api.bring("other", &brought).await), "no_name_for_certificate");
}

#[tokio::test]
async fn one_is_removed_by_those_who_have_it_and_goes_with_its_application() {
    let api = Fixture::start().await;
    api.with_domains("shop", &["shop.example", "issued.example"]).await;
    api.with_domains("other", &["other.example"]).await;
    api.bring("shop", &made(&["shop.example"])).await.unwrap();
    let remove = async |app: &str, name: &str| {
        let path = format!("/v1/apps/{app}/certificates/{name}");
        api.client.delete::<CertificatesShown>(&path).await
    };
    assert_eq!(code(remove("other", "shop.example").await), "no_certificate");
    assert_eq!(code(remove("shop", "a%20b").await), "no_certificate");
    // One that an authority issued belongs to the domain.
    let mut issued = api.record("shop.example").await.unwrap();
    issued.source = CertificateSource::Issued { by: "https://acme.example/".into() };
    issued.owner = None;
    let key = TypedKey::Certificate("issued.example".parse().unwrap());
    crate::records::write(&*api.store, key, &issued).await.unwrap();
    assert_eq!(api.certificates("shop").await.len(), 2);
    assert_eq!(code(remove("other", "issued.example").await), "no_certificate");
    remove("shop", "issued.example").await.unwrap();
    remove("shop", "Shop.Example").await.unwrap();
    assert!(api.certificates("shop").await.is_empty());
    api.bring("shop", &made(&["shop.example"])).await.unwrap();
    let _: Value = api.client.delete("/v1/apps/shop?now=true").await.unwrap();
    assert_eq!(api.record("shop.example").await, None);
}

#[tokio::test]
async fn a_private_key_is_in_nothing_that_is_answered() {
    let api = Fixture::start().await;
    api.with_domains("shop", &["shop.example"]).await;
    let good = made(&["shop.example"]);
    let canary = good.key.lines().nth(1).unwrap().to_owned();
    let mut said = format!("{:?}", api.bring("shop", &good).await.unwrap());
    let mixed = Made { chain: made(&["shop.example"]).chain, key: good.key.clone() };
    said += &format!("{:?}", api.bring("shop", &mixed).await.unwrap_err());
    // The key in the place of the chain, and a body that is no JSON.
    let swapped = Made { chain: good.key.clone(), key: good.chain.clone() };
    said += &format!("{:?}", api.bring("shop", &swapped).await.unwrap_err());
    let path = "/v1/apps/shop/certificates";
    let odd: anyhow::Result<Value> = api.client.post(path, &json!([canary])).await;
    said += &format!("{:?}", odd.unwrap_err());
    let odd: anyhow::Result<Value> =
        api.client.post(path, &json!({ "chain": [good.key], "key": good.key })).await;
    said += &format!("{:?}", odd.unwrap_err());
    for path in [path, "/v1/certificates", "/v1/audit", "/v1/store/keys", "/v1/apps/shop"] {
        let shown: anyhow::Result<Value> = api.client.get(path).await;
        said += &format!("{shown:?}");
    }
    assert!(said.contains("shop.example"));
    assert!(!said.contains(&canary), "{said}");
    let record = api.record("shop.example").await.unwrap();
    assert_eq!(record.key, SecretText::from(good.key));
    assert!(!format!("{record:?}").contains(&canary));
}
