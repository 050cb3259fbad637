package com.example.agent;

import com.google.protobuf.ByteString;
import com.stateward.v1.*;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Edits and values in few words. */
final class Values {
  private Values() {}

  static Edit set(String slot, Value value) {
    return Edit.newBuilder().setSetSlot(SetSlot.newBuilder().setSlot(slot).setValue(value)).build();
  }

  static Edit add(String log, Value... entries) {
    return Edit.newBuilder().setAppend(Append.newBuilder().setLog(log).addAllEntries(List.of(entries))).build();
  }

  static Value text(String words) {
    return Value.newBuilder().setMediaType("text/plain").setData(ByteString.copyFromUtf8(words)).build();
  }

  static Value binary(String data) {
    return Value.newBuilder().setMediaType("application/octet-stream").setData(ByteString.copyFromUtf8(data)).build();
  }

  static String contentOf(String file) {
    try {
      return Files.readString(Path.of(file));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  static String words(Value value) {
    return value.getData().toStringUtf8();
  }
}
