// What a program in C++ does with the generated stubs: it saves, meets a conflict, reads the reason, and hydrates.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <iostream>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "stateward/v1/checkpoint_service.grpc.pb.h"

using namespace stateward::v1;

static grpc::Status Save(CheckpointService::Stub& stub, SaveResponse* saved, const std::string& request_id) {
  SaveRequest request;
  request.set_thread("from-cpp");
  request.mutable_options()->set_request_id(request_id);
  request.mutable_options()->set_expected_version(0);
  auto* edit = request.mutable_diff()->add_edits()->mutable_set_slot();
  edit->set_slot("goal");
  edit->mutable_value()->set_media_type("text/plain");
  edit->mutable_value()->set_data("a room in Paris");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  return stub.Save(&context, request, saved);
}

int main(int, char** arguments) {
  auto channel = grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials());
  auto stub = CheckpointService::NewStub(channel);

  SaveResponse saved;
  if (!Save(*stub, &saved, "first").ok()) return 1;
  std::cout << "saved version " << saved.version() << std::endl;

  grpc::Status refused = Save(*stub, &saved, "second");
  google::rpc::Status details;
  details.ParseFromString(refused.error_details());  // the trailer grpc-status-details-bin
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) std::cout << "refused " << info.reason() << std::endl;
  }

  HydrateRequest request;
  request.set_thread("from-cpp");
  HydrateResponse page;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!stub->Hydrate(&context, request, &page).ok()) return 1;
  std::cout << "hydrated " << page.state().slots().at("goal").data() << std::endl;
  return 0;
}
