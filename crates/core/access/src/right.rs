//! The rights that requests need, what each is about, and the least role that has it.

use model::people::PersonRole;

/// What one request is allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To list applications: everybody, of those that they see.
    ListApplications,
    /// To see and make tokens of one's own.
    OwnTokens,
    /// To get a first token for an invitation.
    LogIn,
    SeeApplication,
    ReadVariables,
    Push,
    /// To take changes back, each of which needs its own right too.
    Undo,
    Scale,
    Restart,
    /// To close it for maintenance, and open it again.
    Maintain,
    Configure,
    RunCommand,
    /// To choose domains and public ports.
    ChooseAddresses,
    KeepFiles,
    MoveApplication,
    DestroyApplication,
    /// To bring one back that was destroyed.
    RestoreApplication,
    CreateApplication,
    SeePlatform,
    ManageNodes,
    SeeAudit,
    ManagePeople,
    /// To read and write any key.
    RawStore,
    /// To take the whole cluster out, with its secrets, and bring one in.
    MoveCluster,
    /// To choose the binary that all nodes run.
    Upgrade,
    ShutDown,
    FailPoints,
}

/// What a right is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everybody has it.
    Anyone,
    /// Those who come with an invitation have it.
    Invited,
    Application,
    /// An application that is to be made: on the platform or in a team.
    NewApplication,
    Platform,
    /// The owner of the machine has it, on the machine alone.
    Machine,
}

impl Right {
    pub const ALL: [Right; 27] = [
        Right::ListApplications,
        Right::OwnTokens,
        Right::LogIn,
        Right::SeeApplication,
        Right::ReadVariables,
        Right::Push,
        Right::Undo,
        Right::Scale,
        Right::Restart,
        Right::Maintain,
        Right::Configure,
        Right::RunCommand,
        Right::ChooseAddresses,
        Right::KeepFiles,
        Right::MoveApplication,
        Right::DestroyApplication,
        Right::RestoreApplication,
        Right::CreateApplication,
        Right::SeePlatform,
        Right::ManageNodes,
        Right::SeeAudit,
        Right::ManagePeople,
        Right::RawStore,
        Right::MoveCluster,
        Right::Upgrade,
        Right::ShutDown,
        Right::FailPoints,
    ];

    pub fn reach(self) -> Reach {
        match self {
            Right::ListApplications | Right::OwnTokens => Reach::Anyone,
            Right::LogIn => Reach::Invited,
            Right::SeeApplication
            | Right::ReadVariables
            | Right::Push
            | Right::Undo
            | Right::Scale
            | Right::Restart
            | Right::Maintain
            | Right::Configure
            | Right::RunCommand
            | Right::ChooseAddresses
            | Right::KeepFiles
            | Right::MoveApplication
            | Right::DestroyApplication
            | Right::RestoreApplication => Reach::Application,
            Right::CreateApplication => Reach::NewApplication,
            Right::SeePlatform | Right::ManageNodes | Right::SeeAudit | Right::ManagePeople => {
                Reach::Platform
            }
            Right::RawStore
            | Right::MoveCluster
            | Right::Upgrade
            | Right::ShutDown
            | Right::FailPoints => Reach::Machine,
        }
    }

    /// Returns the least role that has it, where it is about an application or the platform.
    pub fn role_min(self) -> PersonRole {
        match self {
            Right::ListApplications
            | Right::OwnTokens
            | Right::LogIn
            | Right::SeeApplication
            | Right::SeePlatform => PersonRole::Viewer,
            Right::ReadVariables
            | Right::Push
            | Right::Undo
            | Right::Scale
            | Right::Restart
            | Right::Maintain
            | Right::Configure
            | Right::RunCommand
            | Right::ChooseAddresses
            | Right::KeepFiles
            | Right::CreateApplication => PersonRole::Developer,
            Right::MoveApplication
            | Right::DestroyApplication
            | Right::RestoreApplication
            | Right::ManageNodes
            | Right::SeeAudit => PersonRole::Operator,
            Right::ManagePeople
            | Right::RawStore
            | Right::MoveCluster
            | Right::Upgrade
            | Right::ShutDown
            | Right::FailPoints => PersonRole::Owner,
        }
    }

    /// Returns what it lets one do, as a phrase after "the right to".
    pub fn words(self) -> &'static str {
        match self {
            Right::ListApplications => "list applications",
            Right::OwnTokens => "manage own tokens",
            Right::LogIn => "log in",
            Right::SeeApplication => "see the application",
            Right::ReadVariables => "read its variables",
            Right::Push => "push to it",
            Right::Undo => "take changes of it back",
            Right::Scale => "scale it",
            Right::Restart => "restart it",
            Right::Maintain => "close it for maintenance",
            Right::Configure => "change its variables",
            Right::RunCommand => "run commands in it",
            Right::ChooseAddresses => "choose its domains and ports",
            Right::KeepFiles => "say which files it keeps",
            Right::MoveApplication => "move it to another node",
            Right::DestroyApplication => "destroy it",
            Right::RestoreApplication => "bring it back",
            Right::CreateApplication => "create applications",
            Right::SeePlatform => "see the platform",
            Right::ManageNodes => "manage nodes",
            Right::SeeAudit => "read the audit",
            Right::ManagePeople => "manage people",
            Right::RawStore => "use the store directly",
            Right::MoveCluster => "export and import the cluster",
            Right::Upgrade => "upgrade the platform",
            Right::ShutDown => "shut the node down",
            Right::FailPoints => "set fail points",
        }
    }
}
