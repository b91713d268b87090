//! Keys that are read and written.

use super::*;
use crate::id::ProcessType;

#[test]
fn keys_are_validated() {
    for good in ["a", "a::b", "a:b::c", "app::x::spec", "ä::ö"] {
        assert!(good.parse::<Key>().is_ok(), "{good}");
    }
    for bad in ["", "::", "a::", "::a", "a::::b", "a\nb", &"x".repeat(1025)] {
        assert!(bad.parse::<Key>().is_err(), "{bad}");
    }
}

#[test]
fn prefixes_match_whole_tokens() {
    let prefix: Prefix = "foo::bar".parse().unwrap();
    for (key, expected) in [
        ("foo::bar", true),
        ("foo::bar::baz", true),
        ("foo::barbaz", false),
        ("foo", false),
        ("foo::bar:::x", true),
    ] {
        assert_eq!(prefix.matches(&Key(key.into())), expected, "{key}");
    }
    assert!(Prefix::all().matches(&Key("anything".into())));
}

#[test]
fn typed_keys_round_trip() {
    let app: ApplicationName = "shop".parse().unwrap();
    let node: NodeId = "n1".parse().unwrap();
    let id = InstanceId { application: app.clone(), process: ProcessType::web(), slot: 3 };
    let release = ReleaseId { number: 7, node: node.clone() };
    for key in [
        TypedKey::Spec(app.clone()),
        TypedKey::Config(app.clone()),
        TypedKey::ConfigAt(app.clone(), release.clone()),
        TypedKey::Release(app.clone(), release.clone()),
        TypedKey::Outcome(app.clone(), release.clone()),
        TypedKey::Artefact(app.clone(), BuildId::Of(release), node.clone(), "x86_64".into()),
        TypedKey::Artefact(
            app.clone(),
            BuildId::Content([7; 16]),
            node.clone(),
            "x86_64-musl".into(),
        ),
        TypedKey::Source(app.clone(), ContentHash([7; 32])),
        TypedKey::Rollout(app.clone()),
        TypedKey::Holder(app.clone()),
        TypedKey::Move(app.clone()),
        TypedKey::Cron(app.clone(), "clean".into()),
        TypedKey::Destroyed(app, Timestamp(1_700_000_000_000)),
        TypedKey::Drained(node.clone()),
        TypedKey::Claim(id.clone(), node.clone()),
        TypedKey::Probe(node.clone(), id.clone()),
        TypedKey::Testimony(node.clone(), id.clone(), node.clone()),
        TypedKey::Member(node.clone()),
        TypedKey::Guest(node.clone()),
        TypedKey::NodeInfo(node.clone()),
        TypedKey::NodeLoad(node.clone()),
        TypedKey::Roll,
        TypedKey::Binary(ContentHash([9; 32])),
        TypedKey::NodeUpgrade(node.clone()),
        TypedKey::Sealing,
        TypedKey::RotationOrder,
        TypedKey::NodeSecrets(node.clone()),
        TypedKey::IsolationDefault,
        TypedKey::PlatformAddress,
        TypedKey::User("ana".parse().unwrap()),
        TypedKey::Team("shop".parse().unwrap()),
        TypedKey::Token(ContentHash([5; 32])),
        TypedKey::TokenUse(ContentHash([5; 32]), node.clone()),
        TypedKey::Audit(node.clone(), AuditId::new(Timestamp(7), 3)),
        TypedKey::AuditOutcome(node.clone(), AuditId::new(Timestamp(7), 3)),
        TypedKey::Certificate("*.example.org".parse().unwrap()),
        TypedKey::Certificate("2001:db8::7".parse().unwrap()),
        TypedKey::AcmeAccount,
        TypedKey::AcmeChallenge("192.0.2.7".parse().unwrap()),
        TypedKey::AcmeSettings,
        TypedKey::AcmeRegistration,
        TypedKey::AcmeOrder("2001:db8::7".parse().unwrap()),
        TypedKey::PublicAddresses(node.clone()),
        TypedKey::Board(BoardKey::Drained(id.clone(), 4)),
        TypedKey::Board(BoardKey::Memory(id.clone(), 4)),
        TypedKey::Board(BoardKey::Suspect(id.clone(), 4)),
        TypedKey::Board(BoardKey::Unkept(id, node)),
    ] {
        assert_eq!(TypedKey::parse(&key.key()), Some(key));
    }
}
